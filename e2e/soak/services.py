#!/usr/bin/env python3
# What kube-proxy writes for N Services with two endpoints each.  services.py MODE N;  MODE-change N I: one sync, in which the I-th Service changed.
# Compared with kube-proxy 1.36's iptables-save and nft list ruleset for the same Services, IPv4: tables, chains and rules are equal in
# number and matches, except nfacct's match (no kernel of the tests need have it), rule order and the Service kubernetes. IPVS: from knowledge.
import base64, hashlib, sys

mode, n = sys.argv[1], int(sys.argv[2])
h = lambda t: base64.b32encode(hashlib.sha256(t.encode()).digest()).decode()[:16]
vip = lambda i: f"10.{96 + (i >> 16)}.{(i >> 8) & 255}.{i & 255}"
ep = lambda i, k: f"10.244.{(2 * i + k) // 250 % 250 + 1}.{(2 * i + k) % 250 + 2}"
comment = lambda text: f'-m comment --comment "{text}"'
new = "-m conntrack --ctstate NEW " + "-m comment --comment"

MANGLE = "*mangle\n:KUBE-PROXY-CANARY -\nCOMMIT"
FILTER = f"""*filter
:KUBE-EXTERNAL-SERVICES -
:KUBE-FIREWALL -
:KUBE-FORWARD -
:KUBE-NODEPORTS -
:KUBE-PROXY-CANARY -
:KUBE-PROXY-FIREWALL -
:KUBE-SERVICES -
-A INPUT -j KUBE-FIREWALL
-A INPUT {new} "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT {comment("kubernetes health check service ports")} -j KUBE-NODEPORTS
-A INPUT {new} "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD {new} "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD {comment("kubernetes forwarding rules")} -j KUBE-FORWARD
-A FORWARD {new} "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD {new} "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A OUTPUT {new} "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT {new} "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 {comment("block incoming localnet connections")} -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD {comment("kubernetes forwarding rules")} -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD {comment("kubernetes forwarding conntrack rule")} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT"""
JUMPS = f"""-A PREROUTING {comment("kubernetes service portals")} -j KUBE-SERVICES
-A OUTPUT {comment("kubernetes service portals")} -j KUBE-SERVICES
-A POSTROUTING {comment("kubernetes postrouting rules")} -j KUBE-POSTROUTING"""
MASQUERADE = f"""-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING {comment("kubernetes service traffic requiring SNAT")} -j MASQUERADE --random-fully"""


def iptables_service(i):
    s = "KUBE-SVC-" + h(f"s{i}")
    at = f'-d {vip(i)}/32 -p tcp {comment(f"default/s{i}:http cluster IP")} -m tcp --dport 80'
    portal, chains, rules = f"-A KUBE-SERVICES {at} -j {s}", [s], [f"-A {s} ! -s 10.244.0.0/16 {at} -j KUBE-MARK-MASQ"]
    for k in range(2):
        e = "KUBE-SEP-" + h(f"s{i}e{k}")
        chains.append(e)
        chance = "-m statistic --mode random --probability 0.50000000000 " if k == 0 else ""
        rules.append(f'-A {s} {comment(f"default/s{i}:http -> {ep(i, k)}:8080")} {chance}-j {e}')
        rules.append(f'-A {e} -s {ep(i, k)}/32 {comment(f"default/s{i}:http")} -j KUBE-MARK-MASQ')
        rules.append(f'-A {e} -p tcp {comment(f"default/s{i}:http")} -m tcp -j DNAT --to-destination {ep(i, k)}:8080')
    return portal, chains, rules


# A sync writes the chains that all Services share anew, and those of the Services that changed.
def iptables(changed=None):
    services = [iptables_service(i) for i in range(n)]
    told = services if changed is None else [services[changed]]
    chains = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-SERVICES", "KUBE-NODEPORTS"] + [c for s in told for c in s[1]]
    if changed is None:
        print(MANGLE, FILTER, sep="\n")
        chains.append("KUBE-PROXY-CANARY")
    print("*nat", *(f":{c} -" for c in chains), sep="\n")
    if changed is None:
        print(JUMPS)
    print(MASQUERADE, *(s[0] for s in services), *(r for s in told for r in s[2]), sep="\n")
    last = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
    print(f"-A KUBE-SERVICES {comment(last)} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", "COMMIT", sep="\n")


def ipvs():
    print("""*nat
:KUBE-SERVICES -
:KUBE-POSTROUTING -
:KUBE-MARK-MASQ -
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT""")


nft_name = lambda i: f"service-{h(f's{i}')[:8]}-default/s{i}/tcp/http"
nft_rule = lambda i: f"meta l4proto tcp dnat ip to numgen random mod 2 map {{ 0 : {ep(i, 0)} . 8080, 1 : {ep(i, 1)} . 8080 }}"
FIELDS = "ipv4_addr . inet_proto . inet_service"
NFT = f"""set hairpin-connections {{ type ipv4_addr . {FIELDS}; }}
set cluster-ips {{ type ipv4_addr; }}
set nodeport-ips {{ type ipv4_addr; elements = {{ 192.0.2.1 }}; }}
map no-endpoint-services {{ type {FIELDS} : verdict; }}
map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
map firewall-ips {{ type {FIELDS} : verdict; }}
map service-ips {{ type {FIELDS} : verdict; }}
map service-nodeports {{ type inet_proto . inet_service : verdict; }}
chain nodeport-endpoints-check {{ ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }}
chain service-endpoints-check {{ ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
chain firewall-check {{ ip daddr . meta l4proto . th dport vmap @firewall-ips; }}
chain services {{
 ip daddr @cluster-ips ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x4000 comment "masquerade clusterIP traffic from outside cluster"
 ip daddr . meta l4proto . th dport vmap @service-ips
 ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
}}
chain masquerading {{
 meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random
 ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
}}
chain cluster-ips-check {{
 ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
 ip daddr 10.96.0.0/16 drop comment "Drop traffic to unallocated ClusterIPs"
}}
chain reject-chain {{ reject; }}
chain filter-prerouting-pre-dnat {{ type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }}
chain filter-output-pre-dnat {{ type filter hook output priority -110; ct state new jump firewall-check; }}
chain filter-input {{ type filter hook input priority filter; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }}
chain filter-forward {{ type filter hook forward priority filter; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }}
chain filter-output {{ type filter hook output priority filter; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }}
chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}
chain nat-output {{ type nat hook output priority -100; jump services; }}
chain nat-postrouting {{ type nat hook postrouting priority srcnat; jump masquerading; }}"""


def nftables(changed=None):
    if changed is not None:
        name = f"ip kube-proxy {nft_name(changed)}"
        print(f"add chain {name}", f"flush chain {name}", f"add rule {name} {nft_rule(changed)}", sep="\n")
        return
    print("table ip kube-proxy {", NFT, *(f"chain {nft_name(i)} {{ {nft_rule(i)}; }}" for i in range(n)), "}", sep="\n")
    print("add element ip kube-proxy cluster-ips {", ", ".join(map(vip, range(n))), "}")
    print("add element ip kube-proxy service-ips {", ", ".join(f"{vip(i)} . tcp . 80 : goto {nft_name(i)}" for i in range(n)), "}")


written = {"iptables": iptables, "ipvs": ipvs, "nftables": nftables}
if mode.endswith("-change"):
    written[mode.removesuffix("-change")](int(sys.argv[3]))
else:
    written[mode]()
