//! The network configuration. Like Go's decoder, ours ignores the case of keys; it does not change nested
//! objects.

use crate::attachment::{Attachment, is_valid};
use crate::error::{CniError, DECODING_FAILURE, INTERNAL, INVALID_CONFIG};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::path::PathBuf;

/// Without `subnetFile`.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// Without `dataDir`.
const DATA_DIR: &str = "/var/lib/cni/flannel";

/// The keys that the plugin uses. Others are not passed to the delegate.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The network's name, from `name`.
    pub name: String,
    /// From `cniVersion`. May be empty.
    pub cni_version: String,
    /// The path of subnet.env, from `subnetFile`.
    pub subnet_file: PathBuf,
    /// The directory of saved configurations, from `dataDir`.
    pub data_dir: PathBuf,
    delegate: Option<Value>,
    ipam: Option<Value>,
    runtime_config: Option<Value>,
    /// The result of ADD, which the runtime passes with CHECK; from `prevResult`.
    pub prev_result: Option<Value>,
    valid_attachments: Option<Value>,
}

impl Conf {
    /// Nested objects are left to the verbs that use them.
    pub fn parse(bytes: &[u8]) -> Result<Self, CniError> {
        // Go's decoder also replaces invalid UTF-8.
        let text = String::from_utf8_lossy(bytes);
        let decoding = |why: String| {
            CniError::new(
                DECODING_FAILURE,
                format!("cannot decode the network configuration: {why}"),
            )
        };
        let fields: Fields =
            serde_json::from_str(&text).map_err(|error| decoding(error.to_string()))?;
        let mut conf = Self {
            name: String::new(),
            cni_version: String::new(),
            subnet_file: SUBNET_FILE.into(),
            data_dir: DATA_DIR.into(),
            delegate: None,
            ipam: None,
            runtime_config: None,
            prev_result: None,
            valid_attachments: None,
        };
        for (key, value) in fields.0 {
            if value.is_null() {
                // libcni writes an empty list as null. Without the key, the valid attachments are unknown.
                if key.eq_ignore_ascii_case("cni.dev/valid-attachments") {
                    conf.valid_attachments = Some(Value::Array(Vec::new()));
                }
                continue;
            }
            let string = |value: &Value| {
                value
                    .as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| decoding(format!("{key:?} must be a string")))
            };
            match key.to_ascii_lowercase().as_str() {
                "name" => conf.name = string(&value)?,
                "cniversion" => conf.cni_version = string(&value)?,
                "subnetfile" => conf.subnet_file = path(string(&value)?, SUBNET_FILE),
                "datadir" => conf.data_dir = path(string(&value)?, DATA_DIR),
                "delegate" => conf.delegate = Some(value),
                "ipam" => conf.ipam = Some(value),
                "runtimeconfig" => conf.runtime_config = Some(value),
                "prevresult" => conf.prev_result = Some(value),
                // libcni writes the second key for its own earlier versions.
                "cni.dev/valid-attachments" => conf.valid_attachments = Some(value),
                "cni.dev/attachments" if conf.valid_attachments.is_none() => {
                    conf.valid_attachments = Some(value);
                }
                _ => {}
            }
        }
        Ok(conf)
    }

    /// What the operator has set for the delegate. Fails if `delegate` is not an object, has a key `name` or
    /// `ipam`, or has a `type` that is not a string.
    pub fn delegate(&self) -> Result<Map<String, Value>, CniError> {
        let delegate = object("delegate", self.delegate.as_ref())?.unwrap_or_default();
        let refused = |why: &str| Err(CniError::new(INTERNAL, why));
        if delegate.get("type").is_some_and(|kind| !kind.is_string()) {
            return refused("'delegate' dictionary, if present, must have (string) 'type' field");
        }
        if delegate.contains_key("name") {
            return refused(
                "'delegate' dictionary must not have 'name' field, it'll be set by flannel",
            );
        }
        if delegate.contains_key("ipam") {
            return refused(
                "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel",
            );
        }
        Ok(delegate)
    }

    /// What the operator has set for address management.
    pub fn ipam(&self) -> Result<Map<String, Value>, CniError> {
        object("ipam", self.ipam.as_ref()).map(Option::unwrap_or_default)
    }

    /// The runtime's arguments for capabilities, from `runtimeConfig`.
    pub fn runtime_config(&self) -> Result<Option<Map<String, Value>>, CniError> {
        object("runtimeConfig", self.runtime_config.as_ref())
    }

    /// The attachments that GC must keep, from `cni.dev/valid-attachments`; `None` without the key. After an
    /// error, GC must not remove any attachment.
    pub fn valid_attachments(&self) -> Result<Option<Vec<Attachment>>, CniError> {
        let wrong = |why: &str| {
            CniError::new(
                INVALID_CONFIG,
                format!("\"cni.dev/valid-attachments\" {why}, so GC removes nothing"),
            )
        };
        let Some(list) = &self.valid_attachments else {
            return Ok(None);
        };
        let list = list.as_array().ok_or_else(|| wrong("is not a list"))?;
        let one = |value: &Value| {
            let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
            Some(Attachment { container: text("containerID")?, interface: text("ifname")? })
                .filter(is_valid)
        };
        list.iter()
            .map(|value| {
                one(value)
                    .ok_or_else(|| wrong("has an entry without a valid containerID and ifname"))
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

fn path(text: String, default: &str) -> PathBuf {
    if text.is_empty() { default.into() } else { text.into() }
}

fn object(name: &str, value: Option<&Value>) -> Result<Option<Map<String, Value>>, CniError> {
    match value {
        None => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object.clone())),
        Some(_) => Err(CniError::new(
            INTERNAL,
            format!(
                "failed to load flannel netconf file: failed to load netconf: '{name}' must be an object"
            ),
        )),
    }
}

/// The keys and values of an object in their order. If two keys differ only in case, the last one applies.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_in_any_case_and_the_last_applies() {
        let conf = Conf::parse(br#"{"NAME":"a","name":"b","CniVersion":"1.0.0","SubnetFile":"","dataDir":"/d","delegate":null}"#).unwrap();
        assert_eq!((conf.name.as_str(), conf.cni_version.as_str()), ("b", "1.0.0"));
        assert_eq!((conf.subnet_file, conf.data_dir), (SUBNET_FILE.into(), "/d".into()));
        assert_eq!(conf.delegate, None);
    }

    #[test]
    fn malformed_values_are_named() {
        for (text, words) in [
            ("", "EOF"),
            ("[]", "object"),
            (r#"{"name":7}"#, "\"name\" must be"),
            (r#"{"dataDir":[]}"#, "\"dataDir\" must"),
        ] {
            let error = Conf::parse(text.as_bytes()).unwrap_err();
            assert!(error.code == 6 && error.msg.contains(words), "{text}: {error:?}");
        }
        let deep = format!("{{\"delegate\":{}", "[".repeat(100_000));
        assert_eq!(Conf::parse(deep.as_bytes()).unwrap_err().code, 6);
        for (text, words) in [
            (r#"{"delegate":7}"#, "'delegate' must be an object"),
            (r#"{"delegate":{"type":7}}"#, "must have (string) 'type'"),
            (r#"{"delegate":{"name":"x"}}"#, "must not have 'name'"),
            (r#"{"delegate":{"ipam":{}}}"#, "must not have 'ipam'"),
        ] {
            let error = Conf::parse(text.as_bytes()).unwrap().delegate().unwrap_err();
            assert!(error.code == 999 && error.msg.contains(words), "{text}: {error:?}");
        }
    }

    #[test]
    fn list_of_attachments_of_gc_is_complete_or_absent() {
        let list = |text: &str| Conf::parse(text.as_bytes()).unwrap().valid_attachments();
        assert_eq!(list(r#"{"cni.dev/valid-attachments":[]}"#).unwrap(), Some(vec![]));
        let one =
            list(r#"{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}"#).unwrap();
        assert_eq!(
            one,
            Some(vec![Attachment { container: "a".to_owned(), interface: "eth0".to_owned() }])
        );
        assert_eq!(list(r#"{"cni.dev/valid-attachments":null}"#).unwrap(), Some(vec![]));
        for wrong in
            ["{}", r#"[{"containerID":"a"}]"#, r#"[{"containerID":"../a","ifname":"eth0"}]"#, "[7]"]
        {
            assert_eq!(
                list(&format!(r#"{{"cni.dev/valid-attachments":{wrong}}}"#)).unwrap_err().code,
                INVALID_CONFIG,
                "{wrong}"
            );
        }
        // As `cnitool gc` calls.
        assert_eq!(list("{}").unwrap(), None);
    }
}
