//! Builds the configuration for the delegate.

use crate::conf::Conf;
use crate::error::CniError;
use crate::route;
use crate::subnet_env::SubnetEnv;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// Builds the delegate's configuration from the network configuration and subnet.env. Fails on malformed
/// keys, and on keys that only flannel may set.
pub fn build(conf: &Conf, env: &SubnetEnv) -> Result<Map<String, Value>, CniError> {
    let mut delegate = conf.delegate()?;
    delegate.insert("name".to_owned(), conf.name.as_str().into());
    let mut default = |key: &str, value: Value| {
        delegate.entry(key).or_insert(value);
    };
    default("type", "bridge".into());
    // The delegate masquerades only if the daemon does not.
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
        .map(|subnet| {
            let is_in = |end: &&IpAddr| subnet.contains(*end);
            match env.range_ends.iter().find(is_in) {
                Some(end) => {
                    json!([{ "subnet": subnet.to_string(), "rangeEnd": end.to_string() }])
                }
                None => json!([{ "subnet": subnet.to_string() }]),
            }
        })
        .collect();
    let mut routes = route::read(ipam.get("routes"))?;
    routes.extend(env.networks.iter().map(|network| json!({ "dst": network.to_string() })));
    ipam.insert("ranges".to_owned(), ranges.into());
    ipam.insert("routes".to_owned(), routes.into());
    Ok(ipam)
}

/// Writes whole numbers without fraction and exponent, as Go flannel's plugin does. Delegates use Go's
/// decoder, which refuses `1450.0` and `1e3` for an integer.
pub(crate) fn encode(netconf: &Map<String, Value>) -> String {
    Value::Object(object_with_integers(netconf)).to_string()
}

fn object_with_integers(object: &Map<String, Value>) -> Map<String, Value> {
    object.iter().map(|(key, value)| (key.clone(), with_integers(value))).collect()
}

fn with_integers(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => number
            .as_f64()
            .and_then(|float| float.to_string().parse::<i64>().ok())
            .map_or_else(|| value.clone(), Value::from),
        Value::Array(values) => values.iter().map(with_integers).collect(),
        Value::Object(object) => Value::Object(object_with_integers(object)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn whole_numbers_are_written_as_go_writes_them() {
        for (text, wanted) in [
            (
                r#"{"n":[1450.0,1e3,-0.5,1e-7,1.5,0.000001,4294967296,-7,9007199254740993]}"#,
                r#"{"n":[1450,1000,-0.5,1e-7,1.5,1e-6,4294967296,-7,9007199254740993]}"#,
            ),
            (
                r#"{"a":{"mtu":9e3,"s":"1e3 <&>\u2028\u0001ä"},"b":[[],{},null,true]}"#,
                "{\"a\":{\"mtu\":9000,\"s\":\"1e3 <&>\u{2028}\\u0001ä\"},\"b\":[[],{},null,true]}",
            ),
        ] {
            let object: Map<String, Value> = serde_json::from_str(text).unwrap();
            assert_eq!(encode(&object), wanted);
        }
    }

    #[test]
    fn last_address_of_pods_is_passed_on() {
        let env = SubnetEnv {
            networks: vec!["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()],
            subnets: vec!["10.244.7.0/24".parse().unwrap(), "fd00:0:0:7::/64".parse().unwrap()],
            mtu: 1450,
            ip_masq: true,
            range_ends: vec!["10.244.7.253".parse().unwrap()],
        };
        let conf = Conf::parse(br#"{"name":"cbr0"}"#).unwrap();
        assert_eq!(
            build(&conf, &env).unwrap()["ipam"]["ranges"],
            json!([
                [{"subnet": "10.244.7.0/24", "rangeEnd": "10.244.7.253"}],
                [{"subnet": "fd00:0:0:7::/64"}]
            ])
        );
    }

    proptest! {
        #[test]
        fn subnet_is_flannels_with_any_configuration(delegate in values(), ipam in values(), runtime_config in values(), mtu: u32, ip_masq: bool) {
            let env = SubnetEnv { networks: vec!["10.244.0.0/16".parse().unwrap()], subnets: vec!["10.244.7.0/24".parse().unwrap()], mtu, ip_masq, range_ends: Vec::new() };
            let text = json!({"name": "cbr0", "delegate": delegate, "ipam": ipam, "runtimeConfig": runtime_config}).to_string();
            if let Ok(netconf) = build(&Conf::parse(text.as_bytes()).unwrap(), &env) {
                let read: Value = serde_json::from_str(&encode(&netconf)).unwrap();
                prop_assert_eq!(&read["name"], "cbr0");
                prop_assert_eq!(&read["ipam"]["ranges"], &json!([[{"subnet": "10.244.7.0/24"}]]));
                let routes = read["ipam"]["routes"].as_array().unwrap();
                prop_assert_eq!(routes.last().unwrap(), &json!({"dst": "10.244.0.0/16"}));
                prop_assert!(read["type"].is_string());
                // An operator may set null, which differs from a missing key.
                prop_assert_eq!(read["mtu"].is_null(), delegate.get("mtu").is_some_and(Value::is_null));
            }
        }
    }
}
