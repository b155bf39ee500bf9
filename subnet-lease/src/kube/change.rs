//! Parses the lines that the API server sends in a watch on Nodes.

use super::annotations::Prefix;
use super::node::Node;
use crate::json::{Object, excerpt, hide_values};
use types::Problem;

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
    Odd(Problem),
}

/// Why a text is not from the Kubernetes API.
pub(super) fn unusable_answer(why: impl Into<String>) -> Problem {
    Problem::new("kubernetes-nonsense", why)
}

impl Change {
    /// The error tells why the line is not an event of a watch.
    pub(super) fn read(line: &str, prefix: &Prefix) -> Result<Self, Problem> {
        let json = |error| unusable_answer(hide_values(&error));
        let event = Object::parse(line).map_err(json)?;
        let kind: Option<String> = event.read("type").ok().flatten();
        let kind = kind.ok_or_else(|| unusable_answer("the event has no type"))?;
        let object = event.get("object");
        let text = object.ok_or_else(|| unusable_answer("the event has no object"))?.get();
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
                    .ok_or_else(|| unusable_answer("a bookmark without metadata"))?;
                let version = metadata
                    .read::<String>("resourceVersion")
                    .ok()
                    .flatten()
                    .ok_or_else(|| unusable_answer("a bookmark without a version"))?;
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
                return Err(unusable_answer(format!("an event of type {}", excerpt(other))));
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
