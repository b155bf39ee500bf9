//! How to reach the Kubernetes API, and as which Node.

use super::annotations::Prefix;
use http::Uri;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;
use types::Coded;

/// Everything the manager needs to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeOptions {
    /// Addresses of API servers, in the order in which to try; empty: those of the kubeconfig, or of the pod's environment.
    pub urls: Vec<Uri>,
    /// A kubeconfig; none: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Prefix of all annotations; `flannel.alpha.coreos.com` unless a flag changes it.
    pub prefix: Prefix,
    /// File of the network configuration (`net-conf.json`).
    pub net_conf: PathBuf,
    /// Whether to clear the condition NetworkUnavailable.
    pub clear_condition: bool,
    /// This node's Node, by name or by the pod that runs here.
    pub identity: Identity,
    /// What is told to the API server as the client's name; managed fields show the part before the slash.
    pub user_agent: String,
    /// How long the host had been up when the daemon started: a whole cluster may have been switched on together.
    pub up: Duration,
}

/// Parses the address of an API server: an absolute http or https URI with a host, without user, query and fragment.
///
/// # Errors
/// Says what is wrong, without the text, which may contain a secret.
pub fn server_url(text: &str) -> Result<Uri, UrlError> {
    let is_http =
        |scheme: &str| scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
    let Some((_, rest)) = text.split_once("://").filter(|(scheme, _)| is_http(scheme)) else {
        return Err(UrlError::Scheme);
    };
    if text.contains('@') {
        return Err(UrlError::User);
    }
    if text.contains(['?', '#']) {
        return Err(UrlError::Query);
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.strip_prefix('[') {
        Some(inside) => {
            let (address, port) = inside.split_once(']').ok_or(UrlError::Brackets)?;
            address
                .parse::<Ipv6Addr>()
                .map_err(|_| UrlError::Brackets)?;
            (address, port)
        }
        None if authority.matches(':').count() > 1 => return Err(UrlError::Brackets),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    if !port.is_empty()
        && port
            .strip_prefix(':')
            .is_none_or(|port| port.parse::<u16>().is_err())
    {
        return Err(UrlError::Port);
    }
    text.trim_end_matches('/')
        .parse()
        .map_err(|_| UrlError::Host)
}

/// Why a text is not the address of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Its scheme is another one.
    Scheme,
    /// It contains a user.
    User,
    /// It contains a query or a fragment.
    Query,
    /// It contains an IPv6 address without brackets.
    Brackets,
    /// It names no host.
    NoHost,
    /// Its port is none.
    Port,
    /// Its host cannot be one.
    Host,
}

impl Coded for UrlError {
    fn code(&self) -> &'static str {
        "server-url"
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        types::problem::text(f, self, |f| {
            f.write_str(match self {
                Self::Scheme => "it begins neither with https:// nor with http://",
                Self::User => "it contains a user; Kubernetes takes credentials from a kubeconfig (--kubeconfig-file)",
                Self::Query => "it contains a query or a fragment",
                Self::Brackets => "an IPv6 address needs brackets, as in https://[fd00::1]:6443",
                Self::NoHost => "it names no host",
                Self::Port => "its port is not a number up to 65535",
                Self::Host => "its host contains a character that a host cannot contain",
            })
        })
    }
}

impl std::error::Error for UrlError {}

/// Which Node a daemon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The one with this name.
    Node(String),
    /// The one that runs this pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// None: a tool that looks at all of them.
    Nobody,
}
