#!/usr/bin/env bash
# The processor time that flanneld and its programs take beside the rules of 5000 Services, one of which changes each second: at most 1 %. Without any, to compare: none.
# services.sh FLANNELD [SECONDS=300]; root. IPVS needs no module: its rules and sets are there, its Services are not.
set -eu
if [ "${3:-}" = "" ]; then
  for mode in none iptables-nft iptables-legacy nftables ipvs; do unshare -n -m "$0" "$1" "${2:-300}" $mode; done
  exit
fi
here=$(dirname "$0") mode=$3 dir=$(mktemp -d)
generate() { python3 "$here/services.py" "$1" 5000 "${2:-}"; }
each() { seq 0 4999 | while read -r i; do printf "$1\n" $((i / 256)) $((i % 256)); done; }
mount -t tmpfs tmpfs /run
mkdir -p /run/flannel
ip link set lo up
ip link add e0 type veth peer name e1
ip addr add 192.0.2.1/24 dev e0
ip link set e0 up
ip link set e1 up
nftables=false
case $mode in
  iptables-*) generate iptables | "$mode-restore" --noflush ;;
  nftables) nftables=true && generate nftables | nft -f - ;;
  ipvs)
    ipset create KUBE-CLUSTER-IP hash:ip,port maxelem 65536
    each 'add KUBE-CLUSTER-IP 10.96.%d.%d,tcp:80' | ipset restore
    generate ipvs | iptables-nft-restore --noflush
    ;;
esac
echo "{\"Network\":\"10.244.0.0/16\",\"EnableNFTables\":$nftables,\"Backend\":{\"Type\":\"vxlan\"}}" >"$dir/config"
"$1" --subnet-dir="$dir" --iface=e0 --subnet-file="$dir/subnet.env" --ip-masq >"$dir/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true; rm -r "$dir"' EXIT
sleep 45 # The start lists everything.
test -s "$dir/subnet.env"
spent() { awk '{print $14 + $15 + $16 + $17}' "/proc/$daemon/stat"; }
before=$(spent) started=$SECONDS i=0
# What kube-proxy writes when the endpoints of a Service change.
while [ $((SECONDS - started)) -lt "$2" ]; do
  case $mode in
    none) ;;
    iptables-*) generate iptables-change $i | "$mode-restore" --noflush ;;
    nftables) generate nftables-change $i | nft -f - ;;
    ipvs) ipset add -exist KUBE-CLUSTER-IP "10.97.0.$((i % 250)),tcp:80" ;;
  esac
  i=$((i + 1))
  sleep 1
done
took=$(($(spent) - before))
echo "5000 Services of kube-proxy, $mode: $took ticks of 10 ms in $((SECONDS - started)) s, $i changes"
[ $took -le $((SECONDS - started)) ]
