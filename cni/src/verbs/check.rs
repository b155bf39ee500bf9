//! Executes CHECK: the delegate compares the interface with the result of ADD.

use super::shared::{Context, Netconf, failed, find};
use crate::attachment_store::AttachmentStore;
use crate::call::{Call, Verb};
use crate::delegate::{DelegateError, Order};
use crate::error::CniError;
use crate::netconf::encode;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

pub(super) fn check(call: &Call, context: Context<'_>) -> Result<(), CniError> {
    let folder = &call.conf.data_dir;
    let found =
        match AttachmentStore::open(folder).map_err(|why| failed("opening", folder, &why))? {
            Some(attachment_store) => find(&attachment_store, &call.conf, &call.attachment)?,
            None => None,
        };
    let saved = found.and_then(|found| Netconf::read(&found.saved.text));
    let mut netconf = saved.map_or_else(|| Netconf::build(&call.conf, Duration::ZERO), Ok)?;
    // The result has the version of the current configuration, which may be newer than that at ADD.
    netconf.object.insert("cniVersion".to_owned(), call.conf.cni_version.as_str().into());
    if let Some(result) = &call.conf.prev_result {
        netconf.object.insert("prevResult".to_owned(), result.clone());
    }
    let text = encode(&netconf.object);
    let order = Order {
        program: &netconf.program,
        verb: Verb::Check,
        attachment: &call.attachment,
        netns: &call.netns,
        netconf: text.as_bytes(),
    };
    match context.delegate.call(&order).map_err(DelegateError::into_error) {
        Err(error) if is_missed_gateway(&error, &netconf) => Ok(()),
        outcome => outcome.map(drop).map_err(|error| error.during("failed to delegate check")),
    }
}

/// Whether it is the false error that bridge plugins up to 1.1.1 always report for CHECK. They expect a route
/// without a gateway, as in the configuration, although ADD added one. This is the plugin's last check, so
/// ignoring the error hides no other.
fn is_missed_gateway(error: &CniError, netconf: &Netconf) -> bool {
    let text = format!("{} {}", error.msg, error.details);
    let Some((_, rest)) = text.split_once("Expected Route {Dst:{IP:") else {
        return false;
    };
    let Some((address, rest)) = rest.split_once(' ') else {
        return false;
    };
    // Newer bridge plugins print more fields after the gateway, and their error is correct.
    if !rest.contains("GW:<nil>}") || !rest.contains("not found") {
        return false;
    }
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    let routes = netconf
        .object
        .get("ipam")
        .and_then(|ipam| ipam.get("routes"))
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let is_it = |route: &Value| {
        let destination = route
            .get("dst")
            .and_then(Value::as_str)
            .and_then(|dst| dst.parse::<ipnet::IpNet>().ok());
        route.get("gw").is_none()
            && destination.is_some_and(|destination| destination.addr() == address)
    };
    routes.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_missing_gateway_answer_is_ignored() {
        let netconf = r#"{"type":"bridge","ipam":{"routes":[{"dst":"10.244.0.0/16"},{"dst":"10.9.0.0/16","gw":"10.244.7.9"}]}}"#;
        let netconf = Netconf::read(netconf.as_bytes()).unwrap();
        let wrong = |msg: &str| is_missed_gateway(&CniError::new(999, msg), &netconf);
        assert!(wrong(
            "Expected Route {Dst:{IP:10.244.0.0 Mask:ffff0000} GW:<nil>} not found in routing table"
        ));
        for right in [
            "Expected Route {Dst:{IP:10.9.0.0 Mask:ffff0000} GW:10.244.7.9} not found in routing table",
            "Expected Route {Dst:{IP:10.9.0.0 Mask:ffff0000} GW:<nil>} not found in routing table",
            "Expected Route {Dst:{IP:0.0.0.0 Mask:00000000} GW:<nil>} not found in routing table",
            "Expected Route {Dst:{IP:10.244.0.0 Mask:ffff0000} GW:<nil> MTU:0 AdvMSS:0} not found in routing table",
            "Expected Default Route gateway 10.244.7.1 not found",
            "Interface eth0 Mac doesn't match: 1 not found: 2",
            "Expected Route {Dst:{IP:",
            "",
        ] {
            assert!(!wrong(right), "{right}");
        }
    }
}
