package engines_test

import (
	"fmt"

	"genrm.dev/genrm/schema/engines"
)

func Example() {
	catalogue, _ := engines.Get("vllm", "0.24.0")

	flag, _ := catalogue.Lookup("--tp")
	fmt.Println("tp is another spelling of", flag.AliasOf)

	flag, _ = catalogue.Lookup("dtype")
	fmt.Println(flag.Flag, flag.Check("fp16"))

	flag, _ = catalogue.Lookup("enable_prefix_caching")
	forms, _ := flag.BoolForms()
	fmt.Println(forms.True, "or", forms.False)

	// Output:
	// tp is another spelling of tensor_parallel_size
	// --dtype want one of: auto, bfloat16, float, float16, float32, half
	// --enable-prefix-caching or --no-enable-prefix-caching
}
