//! Parses the lines that the API server sends in a watch on Nodes.

use super::annotations::Prefix;
use super::error::NodeError;
use super::node::Node;
use crate::json::Object;
use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Creation or change.
    Put(Box<Node>),
    Gone {
        name: String,
        /// Resource version of the deletion.
        version: u64,
    },
    /// The watch has seen all changes up to this version.
    Bookmark {
        version: String,
        /// Whether it ends the complete list at the beginning of the watch.
        complete: bool,
    },
    /// With it, the server ends the watch.
    Error {
        /// The HTTP status.
        code: u16,
        message: String,
    },
    /// Not a readable Node.
    Odd(NodeError),
}

impl Change {
    /// The error tells why the line is not an event of a watch.
    pub(super) fn read(line: &str, prefix: &Prefix) -> Result<Self, Cow<'static, str>> {
        let json = |error| crate::json::JsonError::unquoted(&error).to_string();
        let event = Object::parse(line).map_err(json)?;
        let kind: String = event.read("type").ok().flatten().ok_or("the event has no type")?;
        let text = event.get("object").ok_or("the event has no object")?.get();
        let node = || Node::read(text, prefix);
        Ok(match kind.as_str() {
            "ADDED" | "MODIFIED" => {
                node().map_or_else(Change::Odd, |node| Change::Put(Box::new(node)))
            }
            "DELETED" => node().map_or_else(Change::Odd, |node| Change::Gone {
                name: node.name,
                version: node.version,
            }),
            "BOOKMARK" => {
                let object = Object::parse(text).map_err(json)?;
                let metadata = object
                    .get("metadata")
                    .and_then(|raw| Object::parse(raw.get()).ok())
                    .ok_or("a bookmark without metadata")?;
                let version = metadata
                    .read::<String>("resourceVersion")
                    .ok()
                    .flatten()
                    .ok_or("a bookmark without a version")?;
                let annotations =
                    metadata.get("annotations").and_then(|raw| Object::parse(raw.get()).ok());
                let complete = annotations
                    .and_then(|all| all.read::<String>("k8s.io/initial-events-end").ok().flatten());
                Change::Bookmark {
                    version,
                    complete: complete.is_some_and(|value| value == "true"),
                }
            }
            "ERROR" => {
                let status = Object::parse(text).map_err(json)?;
                Change::Error {
                    code: status.read("code").ok().flatten().unwrap_or(500),
                    message: status.read::<String>("message").ok().flatten().unwrap_or_default(),
                }
            }
            other => {
                return Err(format!("an event of type {}", crate::json::excerpt(other)).into());
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch() {
        let read =
            |line: &str| Change::read(line, &Prefix::parse("flannel.alpha.coreos.com").unwrap());
        assert!(
            matches!(read(r#"{"type":"ADDED","object":{"metadata":{"name":"n1"}}}"#), Ok(Change::Put(node)) if node.name == "n1")
        );
        let gone =
            read(r#"{"type":"DELETED","object":{"metadata":{"name":"n1","resourceVersion":"9"}}}"#);
        assert_eq!(gone, Ok(Change::Gone { name: "n1".to_owned(), version: 9 }));
        let mark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert_eq!(read(mark), Ok(Change::Bookmark { version: "7".to_owned(), complete: true }));
        let error =
            read(r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#);
        assert_eq!(error, Ok(Change::Error { code: 410, message: "too old".to_owned() }));
        assert!(matches!(read(r#"{"type":"MODIFIED","object":{}}"#), Ok(Change::Odd(_))));
        for odd in [
            "",
            "{}",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"NEW","object":{}}"#,
            r#"{"type":"BOOKMARK","object":{}}"#,
            "\u{0}",
        ] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }
}
