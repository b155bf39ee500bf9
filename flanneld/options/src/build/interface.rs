//! Reads the flags of the underlay interface.

use crate::flags::InterfaceFlags;
use crate::reader::{Reader, given};
use crate::selector::{Pattern, Selector};
use crate::settings::InterfaceSettings;
use crate::store::Store;
use crate::value::Value;
use std::net::IpAddr;
use std::time::Duration;
use types::{Addresses, Family, Problem};

impl InterfaceFlags {
    /// `--iface=auto` has no effect with Kubernetes, because the Node's addresses select the interface.
    pub(super) fn read(&self, store: &Store, reader: &mut Reader) -> InterfaceSettings {
        let Self {
            iface,
            iface_cidr,
            iface_regex,
            iface_can_reach,
            iface_wait,
            public_ip,
            public_ipv6,
        } = self;
        // The order is the one in which the selectors are tried.
        let mut selectors: Vec<Selector> = iface.iter().map(by_name_or_address).collect();
        selectors.extend(iface_cidr.iter().filter_map(|value| by_cidr(value, reader)));
        selectors.extend(iface_regex.iter().filter_map(|value| by_pattern(value, reader)));
        selectors.extend(given(iface_can_reach).and_then(|value| by_target(value, reader)));
        if matches!(store, Store::Kube(_)) && selectors.contains(&Selector::Auto) {
            selectors.retain(|selector| *selector != Selector::Auto);
            reader.warnings.push(Problem::new(
                "iface-auto-with-kubernetes",
                "--iface=auto has no effect with --kube-subnet-mgr, where flanneld by default chooses the interface by the Node's addresses; omit --iface=auto",
            ));
        }
        let public = Addresses::from_options(
            reader.address(public_ip, Family::V4),
            reader.address(public_ipv6, Family::V6),
        );
        let seconds = reader.ranged(iface_wait, 0, 31_536_000, "seconds; 0 waits forever");
        InterfaceSettings {
            selectors,
            public,
            wait: (seconds > 0).then(|| Duration::from_secs(seconds)),
        }
    }
}

/// Some manifests pass the value of an unset variable and expect the default route's interface.
fn by_default_route(value: &Value<String>) -> Option<Selector> {
    value.text.is_empty().then(|| Selector::DefaultRoute(value.from.clone()))
}

fn by_name_or_address(value: &Value<String>) -> Selector {
    by_default_route(value).unwrap_or_else(|| match value.text.as_str() {
        "auto" => Selector::Auto,
        text => text.parse().map_or_else(|_| Selector::Name(text.to_owned()), Selector::Address),
    })
}

fn by_cidr(value: &Value<String>, reader: &mut Reader) -> Option<Selector> {
    by_default_route(value).or_else(|| match value.text.parse::<ipnet::IpNet>() {
        Ok(net) => Some(Selector::Cidr(net.trunc())),
        Err(_) => {
            let text = &value.text;
            reader.wrong(value.unusable(
                "not-a-network",
                format!("{text:?} is not a network; use a value such as 192.168.56.0/24"),
            ));
            None
        }
    })
}

fn by_pattern(value: &Value<String>, reader: &mut Reader) -> Option<Selector> {
    by_default_route(value).or_else(|| match Pattern::new(&value.text) {
        Ok(pattern) => Some(Selector::Regex(pattern)),
        Err(cause) => {
            // The compiler's message has several lines, one of which points at the fault.
            let cause = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            let pattern = &value.text;
            reader.wrong(value.unusable(
                "not-a-pattern",
                format!("could not compile the IP address regex '{pattern}': {cause}"),
            ));
            None
        }
    })
}

fn by_target(value: &Value<String>, reader: &mut Reader) -> Option<Selector> {
    match value.text.parse::<IpAddr>() {
        Ok(target) => Some(Selector::CanReach(target)),
        Err(_) => {
            reader.wrong(
                value.unusable("not-an-address", format!("{:?} is not an IP address", value.text)),
            );
            None
        }
    }
}
