//! Faults of Nodes, of the annotations of Nodes, and of the API server's responses about Nodes.

use crate::json::{JsonFault, MemberError};
use std::fmt;
use types::{Coded, Subnets};

/// Error for a text that is not a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeError {
    /// Text that is not a JSON object.
    Json(JsonFault),
    /// Node without metadata.
    NoMetadata,
    /// Node without a name.
    NoName,
}

impl Coded for NodeError {
    fn code(&self) -> &'static str {
        match self {
            Self::Json(_) => "node-not-json",
            Self::NoMetadata => "node-without-metadata",
            Self::NoName => "node-without-name",
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(fault) => fault.fmt(f),
            Self::NoMetadata => f.write_str("the Node has no metadata"),
            Self::NoName => f.write_str("the Node has no name"),
        }
    }
}

/// Error for podCIDRs that are not subnets of a node. The variants contain the beginning of the podCIDR or of the list of podCIDRs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodCidrError {
    /// podCIDR that is not a network.
    NoNetwork(String),
    /// Several podCIDRs of one family.
    OneFamily(String),
}

impl fmt::Display for PodCidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetwork(value) => write!(f, "the podCIDR {value} is not a network"),
            Self::OneFamily(values) => {
                write!(f, "pod cidrs should be IPv4/IPv6 only or dualstack: {values}")
            }
        }
    }
}

/// Expected type of an annotation's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// IPv4 address.
    V4,
    /// IPv6 address.
    V6,
    /// JSON.
    Json,
}

/// Reason why flanneld does not use a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// podCIDRs that are not subnets.
    PodCidr(PodCidrError),
    /// Annotation whose value does not have the expected type.
    Annotation(&'static str, Wanted),
    /// podCIDR that is not inside the network.
    Outside(Subnets),
    /// podCIDR that overlaps the podCIDR of an older Node. The variant contains the older Node's name.
    Overlaps(Subnets, String),
}

impl Coded for NodeFault {
    fn code(&self) -> &'static str {
        match self {
            Self::PodCidr(_) => "node-podcidr-unusable",
            Self::Annotation(..) => "node-annotation-unreadable",
            Self::Outside(_) => "node-podcidr-outside-network",
            Self::Overlaps(..) => "node-podcidr-overlaps",
        }
    }
}

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodCidr(error) => error.fmt(f),
            Self::Annotation(name, wanted) => {
                let wanted = match wanted {
                    Wanted::V4 => "an IPv4 address",
                    Wanted::V6 => "an IPv6 address",
                    Wanted::Json => "JSON",
                };
                write!(f, "the annotation {name} is not {wanted}")
            }
            Self::Outside(subnets) => write!(f, "the podCIDR {subnets} is not inside the network"),
            Self::Overlaps(subnets, holder) => {
                write!(f, "the podCIDR {subnets} overlaps the podCIDR of the older Node {holder}")
            }
        }
    }
}

/// Error for a prefix that cannot begin the name of an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// Prefix that contains several slashes.
    Slashes,
    /// Prefix that does not have the expected form, with the given text.
    Form(String),
}

impl Coded for PrefixError {
    fn code(&self) -> &'static str {
        "annotation-prefix"
    }
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slashes => f.write_str("prefix can contain at most single slash"),
            Self::Form(given) => write!(
                f,
                "{given:?}: prefix must be in a format: fqdn/[0-9a-z-_]*, such as flannel.alpha.coreos.com"
            ),
        }
    }
}

impl std::error::Error for PrefixError {}

/// Reason why a response does not come from the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// Text that is not JSON.
    Json(JsonFault),
    /// Event without a type.
    NoType,
    /// Event without an object.
    NoObject,
    /// Bookmark without metadata.
    BookmarkWithoutMetadata,
    /// Bookmark without a version.
    BookmarkWithoutVersion,
    /// Event of a type that the API does not define.
    EventType(String),
    /// List without metadata.
    ListWithoutMetadata,
    /// List without a version.
    ListWithoutVersion,
    /// Member `items` whose value is not a list.
    Items(MemberError),
    /// Request that the library cannot build for the server, with the library's error.
    Request(String),
}

impl fmt::Display for Nonsense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(fault) => fault.fmt(f),
            Self::Request(words) => f.write_str(words),
            Self::NoType => f.write_str("the event has no type"),
            Self::NoObject => f.write_str("the event has no object"),
            Self::BookmarkWithoutMetadata => f.write_str("a bookmark without metadata"),
            Self::BookmarkWithoutVersion => f.write_str("a bookmark without a version"),
            Self::EventType(kind) => write!(f, "an event of type {kind}"),
            Self::ListWithoutMetadata => f.write_str("a list without metadata"),
            Self::ListWithoutVersion => f.write_str("a list without a version"),
            Self::Items(error) => error.fmt(f),
        }
    }
}
