#!/usr/bin/env python3
# What kube-proxy 1.36 writes for N Services with two endpoints each.  kp.py MODE N
import sys,hashlib,base64
mode,n=sys.argv[1],int(sys.argv[2])
h=lambda t: base64.b32encode(hashlib.sha256(t.encode()).digest()).decode()[:16]
vip=lambda i:f"10.{96+(i>>16)}.{(i>>8)&255}.{i&255}"
ep=lambda i,k:f"10.244.{(2*i+k)//250%250+1}.{(2*i+k)%250+2}"
def iptables():
    c=["KUBE-MARK-MASQ","KUBE-POSTROUTING","KUBE-SERVICES","KUBE-NODEPORTS"]; r=[
     '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES','-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
     '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING','-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000',
     '-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN','-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0','-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully']
    for i in range(n):
        s="KUBE-SVC-"+h(f"s{i}"); c.append(s)
        r.append(f'-A KUBE-SERVICES -d {vip(i)}/32 -p tcp -m comment --comment "default/s{i}:http cluster IP" -m tcp --dport 80 -j {s}')
        r.append(f'-A {s} ! -s 10.244.0.0/16 -d {vip(i)}/32 -p tcp -m comment --comment "default/s{i}:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ')
        for k in range(2):
            e="KUBE-SEP-"+h(f"s{i}e{k}"); c.append(e)
            p="-m statistic --mode random --probability 0.50000000000 " if k==0 else ""
            r.append(f'-A {s} -m comment --comment "default/s{i}:http -> {ep(i,k)}:8080" {p}-j {e}')
            r.append(f'-A {e} -s {ep(i,k)}/32 -m comment --comment "default/s{i}:http" -j KUBE-MARK-MASQ')
            r.append(f'-A {e} -p tcp -m comment --comment "default/s{i}:http" -m tcp -j DNAT --to-destination {ep(i,k)}:8080')
    r.append('-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS')
    print("*filter\n:KUBE-FORWARD -\n:KUBE-SERVICES -\n:KUBE-EXTERNAL-SERVICES -\n:KUBE-FIREWALL -\n-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n*nat")
    print("\n".join(f":{x} -" for x in c)); print("\n".join(r)); print("COMMIT")
def ipvs():
    print("*nat\n:KUBE-SERVICES -\n:KUBE-POSTROUTING -\n:KUBE-MARK-MASQ -\n-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ\n-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\n-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n-A KUBE-POSTROUTING -j MASQUERADE --random-fully\nCOMMIT")
def nft():
    o=["table ip kube-proxy {","chain mark-for-masquerade { meta mark set mark or 0x4000; }",
       "chain masquerading { type nat hook postrouting priority 100; meta mark & 0x4000 != 0 masquerade fully-random; }"]
    for i in range(n):
        s=f"service-{h(f's{i}')[:8]}-default/s{i}/tcp/http"
        for k in range(2):
            e=f"endpoint-{h(f's{i}e{k}')[:8]}-default/s{i}/tcp/http__{ep(i,k)}/8080"
            o.append(f'chain "{e}" {{ ip saddr {ep(i,k)} jump mark-for-masquerade; meta l4proto tcp dnat to {ep(i,k)}:8080; }}'.replace(f'chain "{e}"',f'chain {q(e)}'))
        o.append(f'chain {q(s)} {{ ip daddr {vip(i)} tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade; numgen random mod 2 vmap {{ 0 : goto {q("endpoint-"+h(f"s{i}e0")[:8]+f"-default/s{i}/tcp/http__{ep(i,0)}/8080")}, 1 : goto {q("endpoint-"+h(f"s{i}e1")[:8]+f"-default/s{i}/tcp/http__{ep(i,1)}/8080")} }}; }}')
    els=", ".join(f'{vip(i)} . tcp . 80 : goto {q("service-"+h(f"s{i}")[:8]+f"-default/s{i}/tcp/http")}' for i in range(n))
    o.append("map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { "+els+" } }")
    o.append("set cluster-ips { type ipv4_addr; elements = { "+", ".join(vip(i) for i in range(n))+" } }")
    o.append("chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }")
    o.append("chain nat-prerouting { type nat hook prerouting priority -100; jump services; }")
    o.append("chain nat-output { type nat hook output priority -100; jump services; }")
    o.append("chain cluster-ips-check { ip daddr @cluster-ips reject; }")
    o.append("chain filter-forward { type filter hook forward priority -110; ct state new jump cluster-ips-check; }")
    print("\n".join(o)+"\n}")
q=lambda x:"k"+h(x)+"-"+x.split("/")[1]
{"iptables":iptables,"ipvs":ipvs,"nftables":nft}[mode]()
