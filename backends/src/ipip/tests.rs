//! Properties of ipip's plan, its announcement, and the leases that it accepts.

use super::*;
use crate::tests::fixture::{self, facts, table};
use reconcile::desired::{Desired, on_link_queries};
use subnet_lease::{Lease, NetworkConfig};
use types::Addresses;

fn ipip(text: &str) -> Result<Ipip, Problem> {
    Ipip::new(&Setup::of(NetworkConfig::parse(text).unwrap()))
}

fn plan(direct: bool) -> Arc<dyn Plan> {
    let text = format!(
        r#"{{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":{{"Type":"ipip","DirectRouting":{direct}}}}}"#
    );
    let backend = ipip(&text).unwrap();
    backend.plan(lease(1, KIND).subnets).unwrap()
}

fn lease(n: u8, backend: &str) -> Lease {
    let attrs = LeaseAttrs { backend: backend.to_owned(), ..LeaseAttrs::default() };
    fixture::lease(n, n, attrs)
}

fn underlay() -> Underlay {
    Underlay {
        // Behind NAT, packets leave with the interface's address.
        public: Addresses::Both([203, 0, 113, 1].into(), "fd00:56::1".parse().unwrap()),
        ..fixture::underlay()
    }
}

fn state(plan: &dyn Plan, near: bool) -> KernelState {
    let leases = table([lease(1, KIND), lease(2, KIND), lease(3, "vxlan")]);
    let near = if near { on_link_queries(plan, &table([]), &leases) } else { Vec::new() };
    let facts = Facts { underlay: underlay(), ..facts(near) };
    Desired::whole(plan, &leases, &facts).state
}

#[test]
fn a_device_and_a_route_for_each_peer() {
    let plan = plan(false);
    let state = state(&*plan, false);
    let keys: Vec<String> = state.0.keys().map(ToString::to_string).collect();
    assert_eq!(
        keys,
        ["link flannel.ipip", "address 10.244.1.0/32 on flannel.ipip", "route to 10.244.2.0/24"]
    );
    let link = state.link(LINK).unwrap();
    let want =
        IpipSpec { local: Some([192, 168, 56, 1].into()), remote: None, ttl: 0, pmtudisc: false };
    assert_eq!((&link.kind, link.mtu, link.up), (&LinkKind::Ipip(want), 1480, true));
    let Some(Value::Route(route)) = state.0.get(&Key::Route("10.244.2.0/24".parse().unwrap(), 0))
    else {
        panic!("{keys:?}")
    };
    assert_eq!((route.via, route.dev, route.onlink), (Some([192, 168, 56, 2].into()), LINK, true));
}

#[test]
fn peers_on_the_link_need_no_tunnel() {
    for (direct, near, dev) in
        [(true, true, "eth0"), (true, false, "flannel.ipip"), (false, true, "flannel.ipip")]
    {
        let state = state(&*plan(direct), near);
        let Some(Value::Route(route)) =
            state.0.get(&Key::Route("10.244.2.0/24".parse().unwrap(), 0))
        else {
            panic!("{direct} {near}")
        };
        assert_eq!(
            (route.dev.as_str(), route.onlink, route.via),
            (dev, true, Some([192, 168, 56, 2].into())),
            "{direct} {near}"
        );
    }
}

#[test]
fn ipip_announcement_and_refusals_follow_the_configuration() {
    let v4 = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipip"}}"#;
    let announced = ipip(v4).unwrap().announce(&underlay(), None).unwrap();
    assert_eq!(
        announced,
        Announced { backend: "ipip".into(), data: None, v6_data: None, mtu: 1480 }
    );
    for (mtu, fits) in [(88, true), (87, false), (10, false)] {
        let result = ipip(v4).unwrap().announce(&Underlay { mtu, ..underlay() }, None);
        assert_eq!(result.is_ok(), fits, "{mtu}");
        assert!(
            fits || result.unwrap_err().to_string().contains("is too small for ipip mode to work")
        );
    }
    let only_v6 = Addresses::V6("fd00:56::1".parse().unwrap());
    let result = ipip(v4)
        .unwrap()
        .announce(&Underlay { addresses: only_v6, public: only_v6, ..underlay() }, None);
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("ipip needs an IPv4 address on the interface eth0")
    );
    let text = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"ipip"}}"#;
    assert!(ipip(text).err().unwrap().to_string().contains("ipip carries IPv4 only"));
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipip","DirectRouting":"x"}}"#;
    assert!(
        ipip(text)
            .err()
            .unwrap()
            .to_string()
            .contains("error decoding IPIP backend config: DirectRouting")
    );

    let rules = ipip(v4).unwrap().rules();
    assert!(rules.accepts(&lease(2, KIND)).is_ok());
    let mut other = lease(2, KIND);
    other.attrs.public_ip = None;
    assert!(rules.accepts(&other).unwrap_err().to_string().contains("no public IPv4 address"));
}
