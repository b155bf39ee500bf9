//! Proves what a node does about its own host: no loop over the default route, and findings that come and go.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy.toml allows it in tests, but does not know their helpers")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use e2e::{FlanneldOptions, Host, Lab, PingOptions, Store, SubnetEnv, Uplink, eventually, ping};

const DEADLINE: Duration = Duration::from_secs(30);

fn store(lab: &Lab, config: &str) -> Store {
    let store = Store::dir(&lab.folder("leases").unwrap());
    store.configure(config).unwrap();
    store
}

fn reaches(from: &e2e::Netns, to: IpAddr) -> bool {
    ping(from, to, &PingOptions::default().timeout(Duration::from_millis(700))).unwrap().is_some()
}

/// Addresses of the node's subnets that no pod has.
fn nobodies(env: &SubnetEnv) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::from(u32::from(env.subnet.unwrap().network()) + 77);
    let v6 = Ipv6Addr::from(u128::from(env.v6_subnet.unwrap().network()) + 77);
    [v4.into(), v6.into()]
}

/// How many packets for the network came to a host.
fn counted(gateway: &Host) -> u64 {
    let listing = gateway.netns().exec("nft", &["list", "table", "inet", "seen"]).unwrap();
    let words: Vec<&str> = listing.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "packets").map(|pair| pair[1].parse::<u64>().unwrap()).sum()
}

#[test]
fn packets_to_nobody_do_not_take_the_default_route() {
    for backend in ["vxlan", "alloc"] {
        let lab = Lab::new("blackhole").unwrap();
        let config = format!(r#"{{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":{{"Type":"{backend}"}}}}"#);
        let store = store(&lab, &config);
        let lan = lab.switch("lan").unwrap();
        let gateway = lab.host("gw", &[Uplink::enp0s8(&lan, 9).unwrap()]).unwrap();
        let leaving = Uplink::enp0s8(&lan, 1).unwrap().gateway("192.168.56.109").unwrap().gateway("fd00:56::109").unwrap();
        let host = lab.host("h1", &[leaving]).unwrap();
        let other = lab.host("h2", &[Uplink::enp0s8(&lan, 2).unwrap()]).unwrap();
        gateway
            .netns()
            .feed("nft", &["-f", "-"], "table inet seen { chain c { type filter hook prerouting priority 0; ip daddr 10.244.0.0/16 counter; ip6 daddr fd10:244::/48 counter; }; }")
            .unwrap();
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let daemon = host.flanneld(&options).unwrap();
        let env = daemon.subnet_env().unwrap();
        for nobody in nobodies(&env) {
            assert!(!reaches(host.netns(), nobody));
        }
        assert!(counted(&gateway) > 0, "without the flag they leave");
        drop(daemon);

        let before = counted(&gateway);
        let daemon = host.flanneld(&options.clone().arg("--ip-blackhole-route")).unwrap();
        for nobody in nobodies(&env) {
            let said = host.netns().output("ping", &["-n", "-c1", "-W5", &nobody.to_string()]).unwrap();
            let said = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
            assert!(said.contains("Invalid argument"), "refused at once: {said}");
        }
        if backend == "vxlan" {
            let far = other.flanneld(&options).unwrap();
            let pod = other.pod("p1", &far.subnet_env().unwrap()).unwrap();
            for nobody in nobodies(&env) {
                assert!(!reaches(pod.netns(), nobody));
            }
            // The bridge of the first pod wins.
            let near = host.pod("p1", &env).unwrap();
            for target in near.addresses() {
                eventually(DEADLINE, "pods reach each other", || reaches(pod.netns(), target)).unwrap();
            }
        }
        assert_eq!(counted(&gateway), before, "{backend}: none left by the default route");
        assert!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        drop(daemon);
        // Without the flag they go.
        let _daemon = host.flanneld(&options).unwrap();
        assert_eq!(host.netns().sh("ip route show type blackhole; ip -6 route show type blackhole").unwrap(), "");
    }
}
