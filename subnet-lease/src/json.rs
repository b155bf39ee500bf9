//! Reads JSON objects as Go's encoding/json does: keys match in any case, the last duplicate key applies, and unknown keys have no effect.
//!
//! Values stay raw text until the caller reads them, so a number that is out of range in an unread member causes no error.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use types::Problem;

/// In the order of the text.
#[derive(Debug, Clone)]
pub struct Object<'a>(pub Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &RawValue>()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl<'a> Object<'a> {
    /// Only white space may follow the object.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The last member with this name, ignoring case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(key, _)| same_name(key, name)).map(|(_, value)| *value)
    }

    /// `None` if the member is absent or `null`. The error names it.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Problem> {
        match self.get(name) {
            None => Ok(None),
            Some(raw) if raw.get() == "null" => Ok(None),
            Some(raw) => serde_json::from_str(raw.get()).map(Some).map_err(|error| {
                let value = excerpt(raw.get());
                Problem::new("json-member", format!("{name}: cannot use {value}: {error}"))
            }),
        }
    }

    /// The items as raw text; empty if the member is absent or `null`.
    #[cfg(feature = "kube")]
    pub(crate) fn read_raw_list(&self, name: &str) -> Result<Vec<&'a RawValue>, Problem> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(raw) if raw.get() == "null" => Ok(Vec::new()),
            Some(raw) => serde_json::from_str(raw.get()).map_err(|error| {
                Problem::new("json-member", format!("{name}: {}", hide_values(&error)))
            }),
        }
    }
}

/// Compares under simple case folding, as Go's encoding/json does.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    let fold = |c: char| match c {
        '\u{212A}' => 'k',
        '\u{017F}' => 's',
        c => c.to_ascii_lowercase(),
    };
    a.chars().map(fold).eq(b.chars().map(fold))
}

/// The parser's text without the values that it quotes from the input, which may be secrets.
#[must_use]
pub fn hide_values(error: &serde_json::Error) -> String {
    match error.classify() {
        // For this category, the parser quotes the value that it found.
        serde_json::error::Category::Data => {
            format!("another type of value at line {} column {}", error.line(), error.column())
        }
        _ => error.to_string(),
    }
}

/// The beginning of a text (60 characters) on one line, for messages.
#[must_use]
pub fn excerpt(text: &str) -> String {
    excerpt_within(text, 60)
}

/// The first `limit` characters of a text on one line.
pub(crate) fn excerpt_within(text: &str, limit: usize) -> String {
    let mut line: String =
        text.chars().take(limit).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(limit).is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_duplicates_and_huge_numbers() {
        let object =
            Object::parse(r#"{"A":1,"bac\u212aend":2,"a":3,"huge":1e999999,"n":null}"#).unwrap();
        assert_eq!(object.read::<u32>("A").unwrap(), Some(3));
        assert_eq!(object.read::<u32>("backend").unwrap(), Some(2));
        assert_eq!(object.read::<u32>("N").unwrap(), None);
        assert!(object.read::<u32>("huge").unwrap_err().text.starts_with("huge: "));
        assert!(Object::parse("{} x").is_err());
        assert!(Object::parse("null").is_err());
    }
}
