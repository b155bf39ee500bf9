//! JSON in the bytes of Go's encoder: keys sorted, `<`, `>` and `&` escaped, numbers as float64. A configuration that Go flannel's
//! plugin saved is replaced only by one that differs.

use serde_json::{Map, Value};
use std::fmt::Write;

/// The fields of a route in the order of the reference library, which encodes a struct there.
const ROUTE: [&str; 7] = ["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];

/// Encodes a delegate's configuration.
pub fn encode(netconf: &Map<String, Value>) -> String {
    let mut out = String::new();
    sorted(&mut out, netconf, |out, key, value| match (key, value) {
        ("ipam", Value::Object(ipam)) => sorted(out, ipam, |out, key, value| match (key, value) {
            ("routes", Value::Array(routes)) => list(out, routes, route),
            _ => plain(out, value),
        }),
        _ => plain(out, value),
    });
    out
}

fn plain(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(value) => number(out, value),
        Value::String(value) => text(out, value),
        Value::Array(values) => list(out, values, plain),
        Value::Object(object) => sorted(out, object, |out, _, value| plain(out, value)),
    }
}

fn list(out: &mut String, values: &[Value], one: impl Fn(&mut String, &Value)) {
    out.push('[');
    for (place, value) in values.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        one(out, value);
    }
    out.push(']');
}

fn fields<'a>(
    out: &mut String,
    fields: impl Iterator<Item = (&'a str, &'a Value)>,
    one: impl Fn(&mut String, &str, &Value),
) {
    out.push('{');
    for (place, (key, value)) in fields.enumerate() {
        if place > 0 {
            out.push(',');
        }
        text(out, key);
        out.push(':');
        one(out, key, value);
    }
    out.push('}');
}

/// serde_json's map is a BTreeMap here; sorting again costs nothing and asks for no feature to stay off.
fn sorted(out: &mut String, object: &Map<String, Value>, one: impl Fn(&mut String, &str, &Value)) {
    let mut entries: Vec<_> = object
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    fields(out, entries.into_iter(), one);
}

fn route(out: &mut String, value: &Value) {
    match value {
        Value::Object(route) => {
            let known = ROUTE
                .iter()
                .filter_map(|key| Some((*key, route.get(*key)?)));
            fields(out, known, |out, _, value| plain(out, value));
        }
        other => plain(out, other),
    }
}

fn number(out: &mut String, number: &serde_json::Number) {
    // Writing to a String cannot fail.
    let _ = match number.as_f64() {
        // Whole numbers that float64 cannot hold stay exact: that is no number of a CNI configuration.
        Some(value) if number.is_f64() => {
            let exponent = value != 0.0 && !(1e-6..1e21).contains(&value.abs());
            let digits = if exponent {
                format!("{value:e}")
            } else {
                format!("{value}")
            };
            write!(
                out,
                "{}",
                if digits.contains("e-") {
                    digits
                } else {
                    digits.replace('e', "e+")
                }
            )
        }
        _ => write!(out, "{number}"),
    };
}

fn text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        let _ = match c {
            '"' => write!(out, "\\\""),
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\u{8}' => write!(out, "\\b"),
            '\u{c}' => write!(out, "\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(out, "\\u{:04x}", u32::from(c))
            }
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(text: &str) -> String {
        encode(
            serde_json::from_str::<Value>(text)
                .unwrap()
                .as_object()
                .unwrap(),
        )
    }

    #[test]
    fn bytes_are_those_of_go() {
        for (text, wanted) in [
            (
                r#"{"b":1,"a":{"d":[],"c":{}}}"#,
                r#"{"a":{"c":{},"d":[]},"b":1}"#,
            ),
            (
                r#"{"t":"<a&b>\u2028\u0001\b\f\u007fä"}"#,
                "{\"t\":\"\\u003ca\\u0026b\\u003e\\u2028\\u0001\\b\\f\u{7f}ä\"}",
            ),
            (
                r#"{"n":[1450.0,1e3,-0.5,1e21,1.5e-7,100000000000000000000.0,0.000001,4294967296,-7]}"#,
                r#"{"n":[1450,1000,-0.5,1e+21,1.5e-7,100000000000000000000,0.000001,4294967296,-7]}"#,
            ),
            (
                r#"{"ipam":{"routes":[{"advmss":2,"mtu":1,"gw":"10.0.0.1","dst":"10.0.0.0/8"}]},"routes":[{"gw":1,"dst":2}]}"#,
                r#"{"ipam":{"routes":[{"dst":"10.0.0.0/8","gw":"10.0.0.1","mtu":1,"advmss":2}]},"routes":[{"dst":2,"gw":1}]}"#,
            ),
        ] {
            assert_eq!(encoded(text), wanted);
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            // Few digits: the reader of the test rounds the others.
            any::<i32>().prop_map(|number| Value::from(f64::from(number) / 16.0)),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// JSON knows one kind of number.
    fn numbers(value: Value) -> Value {
        match value {
            Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
            Value::Array(values) => values.into_iter().map(numbers).collect(),
            Value::Object(object) => Value::Object(
                object
                    .into_iter()
                    .map(|(key, value)| (key, numbers(value)))
                    .collect(),
            ),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost(map in prop::collection::btree_map("[a-h]{1,3}", values(), 0..4)) {
            let object: Map<String, Value> = map.into_iter().collect();
            let read: Value = serde_json::from_str(&encode(&object)).unwrap();
            prop_assert_eq!(numbers(read), numbers(Value::Object(object)));
        }
    }
}
