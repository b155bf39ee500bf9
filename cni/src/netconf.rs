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
    let ranges: Vec<Value> = env.subnets.iter().map(|subnet| json!([{ "subnet": subnet.to_string() }])).collect();
    let mut routes = route::read(ipam.get("routes"))?;
    routes.extend(env.networks.iter().map(|network| json!({ "dst": network.to_string() })));
    ipam.insert("ranges".to_owned(), ranges.into());
    ipam.insert("routes".to_owned(), routes.into());
    Ok(ipam)
}
