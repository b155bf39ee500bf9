//! A lease's key and value from the store: the parser refuses them, or parsing and rendering twice gives the
//! same text. The admission of the lease does not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;
use std::sync::LazyLock;
use subnet_lease::admission::{Terms, admitted};
use subnet_lease::protocol::registry::Entry;
use subnet_lease::protocol::view::Item;
use subnet_lease::{Lease, LeaseAttrs, LeaseTable, NetworkConfig, Term, wire};
use types::Dual;

static TERMS: LazyLock<Terms> = LazyLock::new(|| {
    let config = NetworkConfig::parse(r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#).unwrap();
    let own = Lease {
        subnets: Dual::V4("10.5.1.0/24".parse().unwrap()),
        attrs: LeaseAttrs::default(),
        term: Term::Leased,
        since: 5,
    };
    Terms {
        rules: backends::rules(&config),
        history: Default::default(),
        config,
        own: Some(own),
        local: vec![],
        underlay: vec![],
        links: None,
    }
});

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let key = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let value = parts.next().unwrap_or_default().to_vec();
    if let Some(subnets) = wire::parse_key(&key) {
        assert_eq!(wire::render_key(&subnets), key);
    }
    if let Ok(attrs) = wire::parse_value(&value) {
        let text = wire::render_value(&attrs);
        let again = wire::parse_value(text.as_bytes()).unwrap();
        assert_eq!(wire::render_value(&again), text);
    }
    for key in [key, "10.5.3.0-24&fd00:5:0:3::-64".to_owned()] {
        let item = Item::of(Entry {
            key,
            value: value.as_slice().into(),
            created: 7,
            modified: 7,
            lease: 0,
        });
        if let Some(lease) = item.and_then(|item| item.lease()) {
            let _ =
                admitted(&LeaseTable::of([lease], BTreeSet::new()), &LeaseTable::default(), &TERMS);
        }
    }
});
