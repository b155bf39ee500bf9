//! Three network namespaces for the test: the sender, the host with the rules, and the receiver.

use crate::sets::RuleSet;
use etherparse::PacketBuilder;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto,
    setsockopt, socket, sockopt,
};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use traffic_rules::programs::Variant;
use traffic_rules::reader::nft::Extent;
use traffic_rules::reader::{Device, Fate, HookPath, Packet, Ranges, Rules, iptables, nft, state};
use types::Family;

/// Ports in the random rules and in the test's packets.
pub(crate) const PORTS: [u16; 6] = [53, 80, 443, 4000, 8472, 9001];

/// Packets that the test sends through each set of rules.
pub(crate) const PACKETS: u16 = 14;
/// The mark of sockets whose packets take the second path: to the bridge's second port, or from the
/// receiver through the host.
const OTHER_WAY: u32 = 7;

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub path: HookPath,
    /// The test has already sent packets of this connection in both directions.
    pub established: bool,
    pub family: Family,
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    /// For ICMP, the high byte is the type and the low byte is the code.
    source_port: u16,
    /// For ICMP, the identifier.
    destination_port: u16,
}

/// The position of a packet in its connection: first packet, reply, or third packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nth {
    First,
    Reply,
    Third,
}

pub(crate) fn address(family: Family, net: u8, part: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, net, part, 7).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, u16::from(net), u16::from(part), 0, 0, 0, 0, 7).into(),
    }
}

impl Sent {
    pub(crate) fn random(random: &mut StdRng, family: Family, seed: u64, number: u16) -> Self {
        // A connection that no earlier set used, because the kernel remembers connections.
        let fresh = 16_000 + (seed * u64::from(PACKETS) % 49_000) as u16 + number;
        let (path, established) = match number {
            12 => (HookPath::Forward, true),
            13 => (HookPath::Input, true),
            _ => (if number % 5 < 3 { HookPath::Forward } else { HookPath::Input }, false),
        };
        // ICMP has no ports that distinguish packets, so each receiver gets only one ICMP packet.
        let protocol = match number {
            8 => family.pick(1, 58),
            7 | 11 if seed % 2 == u64::from(number == 7) => family.pick(1, 58),
            // The host itself answers TCP, which ends the connection.
            13 => 17,
            _ => *[6, 17, 17].choose(random).unwrap(),
        };
        let destination = match path {
            HookPath::Input => family.pick(
                IpAddr::from(Ipv4Addr::new(10, 1, 0, 1)),
                Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1).into(),
            ),
            _ => address(family, 2, random.random_range(0..4)),
        };
        let echo = u16::from(family.pick(8_u8, 128)) << 8;
        Self {
            path,
            established,
            family,
            protocol,
            source: address(family, 1, random.random_range(0..4)),
            destination,
            source_port: if matches!(protocol, 1 | 58) { echo } else { fresh },
            destination_port: if matches!(protocol, 1 | 58) {
                fresh
            } else {
                *PORTS.choose(random).unwrap()
            },
        }
    }

    pub(crate) fn packet(&self, bridge_calls_ip: bool) -> Packet {
        let outgoing = match self.path {
            HookPath::Forward => Device::named("out0"),
            _ => Device::none(),
        };
        let icmp = self.is_icmp();
        let fresh = Packet::new(self.path, self.family, Device::named("br0"), outgoing);
        Packet {
            port_in: Some(Device::named("pt0")),
            bridge_calls_ip: Some(bridge_calls_ip),
            source: Ranges::addresses(self.source, self.source),
            destination: Ranges::addresses(self.destination, self.destination),
            protocol: Ranges::one(self.protocol),
            source_port: Ranges::one(self.source_port),
            destination_port: Ranges::one(self.destination_port),
            icmp_type: Ranges::one(if icmp { self.source_port >> 8 } else { 0 }),
            icmp_code: Ranges::one(0_u8),
            state: if self.established {
                Ranges::one(state::ESTABLISHED)
            } else {
                fresh.state.clone()
            },
            ..fresh
        }
    }

    fn is_icmp(&self) -> bool {
        matches!(self.protocol, 1 | 58)
    }

    /// The namespace whose rules record the packet: 0 for the host, 1 for the receiver.
    fn receiver(&self) -> usize {
        usize::from(self.path != HookPath::Input)
    }

    /// An IP packet.
    fn datagram(&self, nth: Nth) -> Vec<u8> {
        let ends = (self.source, self.source_port);
        let others = (self.destination, self.destination_port);
        let ((source, from), (destination, to)) = match nth {
            Nth::Reply => (others, ends),
            Nth::First | Nth::Third => (ends, others),
        };
        let ip = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                PacketBuilder::ipv4(source.octets(), destination.octets(), 64)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                PacketBuilder::ipv6(source.octets(), destination.octets(), 64)
            }
            _ => panic!("two families"),
        };
        let ([kind, code], [a, b]) = (from.to_be_bytes(), to.to_be_bytes());
        let mut bytes = Vec::new();
        match (self.protocol, nth) {
            (1, _) => ip.icmpv4_raw(kind, code, [a, b, 0, 1]).write(&mut bytes, &[]),
            (58, _) => ip.icmpv6_raw(kind, code, [a, b, 0, 1]).write(&mut bytes, &[]),
            (17, _) => ip.udp(from, to).write(&mut bytes, &[]),
            (_, Nth::First) => ip.tcp(from, to, 1, 0xffff).syn().write(&mut bytes, &[]),
            (_, Nth::Reply) => ip.tcp(from, to, 100, 0xffff).syn().ack(2).write(&mut bytes, &[]),
            (_, Nth::Third) => ip.tcp(from, to, 2, 0xffff).ack(101).write(&mut bytes, &[]),
        }
        .unwrap();
        bytes
    }
}

/// Sends one packet of each connection.
fn emit(namespace: &str, all: &[&Sent], nth: Nth) {
    let path = format!("/var/run/netns/{namespace}");
    let send = || {
        setns(std::fs::File::open(&path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        for sent in all {
            let domain = sent.family.pick(AddressFamily::Inet, AddressFamily::Inet6);
            let socket =
                socket(domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).unwrap();
            if nth == Nth::Reply {
                setsockopt(&socket, sockopt::Mark, &OTHER_WAY).unwrap();
            }
            let (bytes, to) = (
                sent.datagram(nth),
                if nth == Nth::Reply { sent.source } else { sent.destination },
            );
            let done = match to {
                IpAddr::V4(to) => sendto(
                    socket.as_raw_fd(),
                    &bytes,
                    &SockaddrIn::from(SocketAddrV4::new(to, 0)),
                    MsgFlags::empty(),
                ),
                IpAddr::V6(to) => sendto(
                    socket.as_raw_fd(),
                    &bytes,
                    &SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, 0)),
                    MsgFlags::empty(),
                ),
            };
            done.unwrap();
        }
    };
    std::thread::scope(|scope| scope.spawn(send).join().unwrap());
}

/// Dropping it deletes the namespaces.
pub(crate) struct Bed {
    names: [String; 3],
}

impl Drop for Bed {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn shell(script: &str, input: &str) -> String {
    let mut child = Command::new("sh")
        .args(["-ec", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{script}\n{input}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// nft rules that record replies, and packets that passed all other chains. They also keep
/// connection tracking active.
fn probe(hook: &str, priority: i32) -> String {
    let note =
        "ct direction reply ct state established update @replied { meta l4proto . th dport }";
    let set = "type inet_proto . inet_service; flags dynamic; size 65535;";
    format!(
        "table inet probe {{ set seen {{ {set} }}\n set replied {{ {set} }}\n\
         chain c {{ type filter hook {hook} priority {priority}; update @seen {{ meta l4proto . th sport }}\n }}\n\
         chain p {{ type filter hook prerouting priority -199; {note}\n }}\n chain o {{ type filter hook output priority -199; {note}\n }}\n }}\n"
    )
}

impl Bed {
    pub(crate) fn new() -> Self {
        let names = ["a", "r", "b"].map(|name| format!("rules-{}-{name}", std::process::id()));
        let [a, r, b] = &names;
        let script = format!(
            "for n in {a} {r} {b}; do ip netns add $n; ip -n $n link set lo up; done
            ip -n {a} link add a0 type veth peer name pt0 netns {r}
            ip -n {r} link add out0 type veth peer name b0 netns {b}
            ip -n {r} link add pt1 type veth peer name c0 netns {b}
            ip -n {r} link add br0 address 02:00:00:00:00:01 type bridge
            ip -n {b} link set b0 address 02:00:00:00:00:02
            ip -n {b} link set c0 address 02:00:00:00:00:03
            ip -n {r} link set out0 address 02:00:00:00:00:04
            for d in pt0 pt1; do ip -n {r} link set $d master br0; done
            for d in br0 pt0 pt1 out0; do ip -n {r} link set $d up; done
            ip -n {a} link set a0 up; for d in b0 c0; do ip -n {b} link set $d up; done
            # The bridge may have learned it by now.
            bridge -n {r} fdb replace 02:00:00:00:00:03 dev pt1 master static
            for n in {a} {r} {b}; do ip netns exec $n sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; done
            for d in br0 out0; do ip netns exec {r} sysctl -qw net.ipv4.conf.$d.rp_filter=0; done
            for d in b0 c0; do ip netns exec {b} sysctl -qw net.ipv4.conf.$d.rp_filter=0; done
            ip netns exec {r} sysctl -qw net.netfilter.nf_conntrack_udp_timeout=300
            ip -n {r} addr add 10.1.0.1/16 dev br0; ip -n {r} addr add fd00:1::1/32 dev br0 nodad
            ip -n {r} addr add 10.9.0.1/30 dev out0; ip -n {r} addr add fd00:9::1/64 dev out0 nodad
            ip -n {a} addr add 10.1.0.2/16 dev a0; ip -n {a} addr add fd00:1::2/32 dev a0 nodad
            ip -n {b} addr add 10.9.0.2/30 dev b0; ip -n {b} addr add fd00:9::2/64 dev b0 nodad
            ip -n {a} route add default via 10.1.0.1; ip -n {a} route add default via fd00:1::1
            ip -n {r} route add 10.2.0.0/16 via 10.9.0.2; ip -n {r} route add fd00:2::/32 via fd00:9::2
            ip -n {b} route add blackhole 10.1.0.0/16; ip -n {b} route add blackhole fd00:1::/32
            for g in 10.1.0.1 fd00:1::1; do ip -n {a} neigh replace $g lladdr 02:00:00:00:00:01 dev a0 nud permanent; done
            for g in 10.9.0.2 fd00:9::2; do ip -n {r} neigh replace $g lladdr 02:00:00:00:00:02 dev out0 nud permanent; done
            # The other way of marked packets: over the bridge, and back from the receiver.
            for f in -4 -6; do for n in {a} {b}; do ip -n $n $f rule add fwmark {OTHER_WAY} lookup {OTHER_WAY}; done; done
            for g in 10.1.0.3 fd00:1::3; do ip -n {a} neigh replace $g lladdr 02:00:00:00:00:03 dev a0 nud permanent; ip -n {a} route add default via $g dev a0 table {OTHER_WAY}; done
            for g in 10.9.0.1 fd00:9::1; do ip -n {b} neigh replace $g lladdr 02:00:00:00:00:04 dev b0 nud permanent; ip -n {b} route add default via $g dev b0 table {OTHER_WAY}; done
            ip netns exec {b} nft -f -"
        );
        let bed = Self { names: names.clone() };
        shell(&script, &probe("prerouting", -400));
        // With STP off, the bridge ports forward as soon as they are up.
        wait::until("the ports of the bridge come up", || {
            ["pt0", "pt1"].iter().all(|port| {
                shell(&format!("ip -n {r} -o link show {port}"), "").contains("state UP")
            })
        })
        .unwrap();
        bed
    }

    /// Applies a set of rules on the host. The result is what the reader parses from the programs'
    /// listings.
    pub(crate) fn apply(&self, set: &RuleSet) -> Rules {
        let (host, name) = (&self.names[1], set.family.pick("iptables", "ip6tables"));
        let empty = |table: &str, chains: &[&str]| {
            let chains: String =
                chains.iter().map(|chain| format!(":{chain} ACCEPT [0:0]\n")).collect();
            format!("*{table}\n{chains}COMMIT\n")
        };
        let nothing = empty("filter", &["INPUT", "FORWARD", "OUTPUT"])
            + &empty("mangle", &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"])
            + &empty("raw", &["PREROUTING", "OUTPUT"]);
        let legacy = if set.legacy.is_empty() { &nothing } else { &set.legacy };
        let nft_part = if set.nft_variant.is_empty() {
            String::new()
        } else {
            format!("{name}-nft-restore <<'END'\n{}END\n", set.nft_variant)
        };
        let script = format!(
            "exec ip netns exec {host} sh -e <<'ALL'
for k in iptables ip6tables; do echo {} > /proc/sys/net/bridge/bridge-nf-call-$k; done
nft -f - <<'END'
flush ruleset
{}END
iptables-legacy-restore <<'END'
{}END
ip6tables-legacy-restore <<'END'
{}END
{nft_part}nft -f - <<'END'
{}
END
{name}-legacy-save -c; echo '#next'; {name}-nft-save -c 2>/dev/null; echo '#next'; nft -j -a list ruleset
ALL",
            u8::from(set.bridge_calls_ip),
            probe("input", i32::MAX),
            set.family.pick(legacy, &nothing),
            set.family.pick(&nothing, legacy),
            set.nft,
        );
        let text = shell(&script, "");
        let parts: Vec<&str> = text.split("#next\n").collect();
        let [legacy, by_nft, listing] = parts.as_slice() else { panic!("{text}") };
        let mut rules = nft::read(&serde_json::from_str(listing).unwrap(), Extent::Rules);
        rules.tables.retain(|table| table.name != "probe");
        rules.extend(iptables::read(legacy, set.family, Variant::Legacy));
        rules.extend(iptables::read(by_nft, set.family, Variant::Nft));
        rules
    }

    /// Sends a first packet and a reply in each connection, so that later packets belong to
    /// established connections. Removes all rules of the host before.
    pub(crate) fn establish(&self, all: &[&Sent]) {
        let [a, r, b] = &self.names;
        self.apply(&RuleSet::none());
        shell(&format!("ip netns exec {b} nft flush set inet probe seen"), "");
        emit(a, all, Nth::First);
        let is_in = |sent: &Sent, seen: &Seen| seen.contains(&(sent.protocol, sent.source_port));
        self.wait("seen", |seen| all.iter().all(|sent| is_in(sent, &seen[sent.receiver()])));
        for (namespace, receiver) in [(r, 0), (b, 1)] {
            let from: Vec<&Sent> =
                all.iter().copied().filter(|sent| sent.receiver() == receiver).collect();
            emit(namespace, &from, Nth::Reply);
        }
        let done = self.wait("replied", |replied| all.iter().all(|sent| is_in(sent, &replied[0])));
        let missing: Vec<_> = all.iter().filter(|sent| !is_in(sent, &done[0])).collect();
        assert!(missing.is_empty(), "connections without reply: {missing:?}");
    }

    /// The result tells for each packet whether it arrived.
    pub(crate) fn send(&self, all: &[Sent], fates: &[Fate]) -> Vec<bool> {
        let [a, _, b] = &self.names;
        shell(&format!("ip netns exec {b} nft flush set inet probe seen"), "");
        for sent in all {
            emit(a, &[sent], if sent.established { Nth::Third } else { Nth::First });
        }
        let arrived = |sent: &Sent, seen: &[Seen]| {
            seen[sent.receiver()].contains(&(sent.protocol, sent.source_port))
        };
        // A packet has arrived once it is sent, unless the machine is busy.
        let seen = self.wait("seen", |seen| {
            let mut wanted =
                all.iter().zip(fates).filter(|(_, fate)| matches!(fate, Fate::Yes { .. }));
            wanted.all(|(sent, _)| arrived(sent, seen))
        });
        all.iter().map(|sent| arrived(sent, &seen)).collect()
    }

    /// Until the recorded packets are complete, or until the test's guard: the callers tell what is
    /// missing. The result is what the host and the receiver recorded.
    fn wait(&self, set: &str, is_complete: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let [_, r, b] = &self.names;
        let list =
            format!("for n in {r} {b}; do ip netns exec $n nft -j list set inet probe {set}; done");
        let mut seen: Vec<Seen> = Vec::new();
        let waited = wait::until("all packets are recorded", || {
            let text = shell(&list, "");
            seen = text.lines().filter(|line| line.starts_with('{')).map(elements).collect();
            is_complete(&seen)
        });
        if let Err(hangs) = waited {
            eprintln!("{hangs}");
        }
        seen
    }
}

/// Protocols and ports.
type Seen = BTreeSet<(u8, u16)>;

/// The protocol and port of each recorded packet, from a listing of nft.
fn elements(listing: &str) -> Seen {
    let listing: serde_json::Value = serde_json::from_str(listing).unwrap();
    let sets = listing["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item["set"]["elem"].as_array());
    let number = |value: &serde_json::Value| match value.as_str() {
        Some("icmp") => Some(1),
        Some("ipv6-icmp" | "icmpv6") => Some(58),
        Some("tcp") => Some(6),
        Some("udp") => Some(17),
        Some(text) => text.parse().ok(),
        None => value.as_u64(),
    };
    let one = |element: &serde_json::Value| {
        let element = element.get("elem").map_or(element, |inner| &inner["val"]);
        let parts = element["concat"].as_array()?;
        Some((number(&parts[0])? as u8, number(&parts[1])? as u16))
    };
    sets.flatten().filter_map(one).collect()
}
