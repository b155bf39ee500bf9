//! The configuration for the delegate.

use crate::conf::Conf;
use crate::error::CniError;
use crate::route;
use crate::subnet_env::SubnetEnv;
use serde_json::{Map, Value, json};

/// Builds the delegate's configuration from the operator's and the daemon's.
///
/// # Errors
/// The operator's one has keys that only flannel may set, or malformed ones.
pub fn build(conf: &Conf, env: &SubnetEnv) -> Result<Map<String, Value>, CniError> {
    let mut delegate = conf.delegate()?;
    delegate.insert("name".to_owned(), conf.name.as_str().into());
    let mut default = |key: &str, value: Value| {
        delegate.entry(key).or_insert(value);
    };
    default("type", "bridge".into());
    // Either the daemon masquerades, or the delegate.
    default("ipMasq", (!env.ip_masq).into());
    default("mtu", env.mtu.into());
    if delegate.get("type").is_some_and(|kind| kind == "bridge") {
        delegate.entry("isGateway").or_insert(true.into());
    }
    if !conf.cni_version.is_empty() {
        delegate.insert("cniVersion".to_owned(), conf.cni_version.as_str().into());
    }
    if let Some(runtime_config) = conf.runtime_config()? {
        delegate.insert("runtimeConfig".to_owned(), runtime_config.into());
    }
    delegate.insert("ipam".to_owned(), ipam(conf, env)?.into());
    Ok(delegate)
}

fn ipam(conf: &Conf, env: &SubnetEnv) -> Result<Map<String, Value>, CniError> {
    let mut ipam = conf.ipam()?;
    ipam.entry("type").or_insert("host-local".into());
    let ranges: Vec<Value> = env
        .subnets
        .iter()
        .map(|subnet| json!([{ "subnet": subnet.to_string() }]))
        .collect();
    let mut routes = route::read(ipam.get("routes"))?;
    routes.extend(
        env.networks
            .iter()
            .map(|network| json!({ "dst": network.to_string() })),
    );
    ipam.insert("ranges".to_owned(), ranges.into());
    ipam.insert("routes".to_owned(), routes.into());
    Ok(ipam)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gojson;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from)
        ];
        let key = "(type|name|ipam|mtu|routes|ranges|dst|gw|table|[a-z]{1,3})";
        leaf.prop_recursive(4, 16, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_configured_the_subnet_is_flannels(delegate in values(), ipam in values(), runtime_config in values(), mtu: u32, ip_masq: bool) {
            let env = SubnetEnv { networks: vec!["10.244.0.0/16".parse().unwrap()], subnets: vec!["10.244.7.0/24".parse().unwrap()], mtu, ip_masq };
            let text = json!({"name": "cbr0", "delegate": delegate, "ipam": ipam, "runtimeConfig": runtime_config}).to_string();
            if let Ok(netconf) = build(&Conf::parse(text.as_bytes()).unwrap(), &env) {
                let read: Value = serde_json::from_str(&gojson::encode(&netconf)).unwrap();
                prop_assert_eq!(&read["name"], "cbr0");
                prop_assert_eq!(&read["ipam"]["ranges"], &json!([[{"subnet": "10.244.7.0/24"}]]));
                let routes = read["ipam"]["routes"].as_array().unwrap();
                prop_assert_eq!(routes.last().unwrap(), &json!({"dst": "10.244.0.0/16"}));
                prop_assert!(read["type"].is_string());
                // An operator may say null, which is not the same as nothing.
                prop_assert_eq!(read["mtu"].is_null(), delegate.get("mtu").is_some_and(Value::is_null));
            }
        }
    }
}
