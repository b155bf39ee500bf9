//! Parses the routes in the operator's `ipam` object as the CNI reference library does. Drops unknown fields.

use crate::error::{CniError, INTERNAL};
use ipnet::IpNet;
use serde_json::{Map, Value};
use std::net::IpAddr;

/// Fields that are left out of the output if they are 0.
const NUMBERS: [&str; 3] = ["mtu", "advmss", "priority"];
/// Fields that are in the output even if they are 0.
const OPTIONAL: [&str; 2] = ["table", "scope"];

/// The value of `routes` in the `ipam` object. An error contains the malformed route.
pub(crate) fn read(routes: Option<&Value>) -> Result<Vec<Value>, CniError> {
    let wrong = |what: &str| CniError::new(INTERNAL, format!("'ipam' routes: {what}"));
    match routes {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(routes)) => routes
            .iter()
            .map(|route| {
                one(route).ok_or_else(|| {
                    wrong(&format!("{route} is not a route such as {{\"dst\":\"10.9.0.0/16\"}}"))
                })
            })
            .collect(),
        Some(_) => Err(wrong("must be a list")),
    }
}

fn one(route: &Value) -> Option<Value> {
    let route = route.as_object()?;
    let field = |name: &str| {
        route
            .iter()
            .find(|(key, value)| key.eq_ignore_ascii_case(name) && !value.is_null())
            .map(|(_, value)| value)
    };
    let mut out = Map::new();
    out.insert("dst".to_owned(), field("dst")?.as_str()?.parse::<IpNet>().ok()?.to_string().into());
    if let Some(gateway) = field("gw") {
        let text = gateway.as_str()?;
        if !text.is_empty() {
            out.insert(
                "gw".to_owned(),
                text.parse::<IpAddr>().ok()?.to_canonical().to_string().into(),
            );
        }
    }
    for (names, zero) in [(&NUMBERS[..], false), (&OPTIONAL[..], true)] {
        for name in names {
            let Some(value) = field(name) else { continue };
            let value = value.as_i64()?;
            if zero || value != 0 {
                out.insert((*name).to_owned(), value.into());
            }
        }
    }
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_route_fields_are_dropped() {
        let routes = json!([
            {"dst": "10.9.0.0/16", "gw": "10.244.7.9", "comment": "x"},
            {"DST": "FD00::/8", "gw": null, "mtu": 0, "priority": 7, "table": 0}
        ]);
        let wanted = json!([{"dst": "10.9.0.0/16", "gw": "10.244.7.9"}, {"dst": "fd00::/8", "priority": 7, "table": 0}]);
        assert_eq!(Value::from(read(Some(&routes)).unwrap()), wanted);
        assert!(read(None).unwrap().is_empty());
        for wrong in [
            json!({}),
            json!([7]),
            json!([{}]),
            json!([{"dst": "10.9.0.0"}]),
            json!([{"dst": "10.9.0.0/16", "gw": "x"}]),
            json!([{"dst": "::/0", "mtu": "9"}]),
        ] {
            assert_eq!(read(Some(&wrong)).unwrap_err().code, INTERNAL, "{wrong}");
        }
    }
}
