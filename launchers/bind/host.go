package bind

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// Host finds the address by which the other nodes of a run reach this one: that
// of the interface, if one is named, else the one that the machine's host name
// has, if it is the machine's own. family is ipv4 or ipv6. Several that fit are
// an error, since a guess would show as a hang: the user names the interface.
func Host(ctx context.Context, iface, family string) (string, error) {
	fits := func(ip net.IP) bool {
		return !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && (ip.To4() != nil) == (family != "ipv6")
	}
	own, err := addresses(iface)
	if err != nil {
		return "", err
	}
	var found []string
	add := func(ip net.IP) {
		if s := ip.String(); fits(ip) && !slices.Contains(found, s) {
			found = append(found, s)
		}
	}
	name := iface
	if iface == "" {
		if name, err = os.Hostname(); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		resolved, err := net.DefaultResolver.LookupIPAddr(ctx, name)
		if err == nil {
			for _, a := range resolved {
				if slices.ContainsFunc(own, a.IP.Equal) {
					add(a.IP)
				}
			}
		}
	}
	if len(found) == 0 { // the name is not known, or means the loopback address as on Debian
		for _, ip := range own {
			add(ip)
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("%s has no %s address that other nodes could reach: name the interface by slurm.interface, or set slurm.address_family", name, family)
	case len(found) > 1:
		return "", fmt.Errorf("%s has several addresses (%s): name the interface by slurm.interface", name, strings.Join(found, ", "))
	}
	return found[0], nil
}

// addresses are those of one interface, or of all.
func addresses(iface string) ([]net.IP, error) {
	var out []net.IP
	var all []net.Addr
	var err error
	if iface == "" {
		all, err = net.InterfaceAddrs()
	} else {
		var i *net.Interface
		if i, err = net.InterfaceByName(iface); err != nil {
			return nil, errors.New("there is no network interface " + iface + " (slurm.interface)")
		}
		all, err = i.Addrs()
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			out = append(out, n.IP)
		}
	}
	return out, err
}
