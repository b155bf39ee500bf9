//! Options for the connection to the Kubernetes API, and the Node of the daemon.

use super::annotations::Prefix;
use http::Uri;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;
use types::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeOptions {
    /// In the order of attempts. If empty, the addresses of the kubeconfig or of the pod's environment are used.
    pub urls: Vec<Uri>,
    /// `None` selects the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// `flannel.alpha.coreos.com` unless a flag changes it.
    pub prefix: Prefix,
    /// The file `net-conf.json`.
    pub net_conf: PathBuf,
    /// The daemon clears the condition NetworkUnavailable of its Node.
    pub clear_condition: bool,
    pub identity: Identity,
    /// Managed fields of the Node show the part before the slash.
    pub user_agent: String,
    /// Uptime of the host when the daemon started. If it is short, all hosts of the cluster may have started together.
    pub up: Duration,
}

/// An absolute http or https URI with a host, without user, query and fragment. The error omits the text, which may contain a secret.
pub fn server_url(text: &str) -> Result<Uri, Problem> {
    let wrong = |why: &str| Problem::new("server-url", why);
    let brackets = || wrong("an IPv6 address needs brackets, as in https://[fd00::1]:6443");
    let is_http =
        |scheme: &str| scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
    let Some((_, rest)) = text.split_once("://").filter(|(scheme, _)| is_http(scheme)) else {
        return Err(wrong("the address begins neither with https:// nor with http://"));
    };
    if text.contains('@') {
        return Err(wrong(
            "the address contains a user; remove the user, and put the credentials into a kubeconfig (--kubeconfig-file)",
        ));
    }
    if text.contains(['?', '#']) {
        return Err(wrong("the address contains a query or a fragment"));
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.strip_prefix('[') {
        Some(inside) => {
            let (address, port) = inside.split_once(']').ok_or_else(brackets)?;
            address.parse::<Ipv6Addr>().map_err(|_| brackets())?;
            (address, port)
        }
        None if authority.matches(':').count() > 1 => return Err(brackets()),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err(wrong("the address names no host"));
    }
    if !port.is_empty() && port.strip_prefix(':').is_none_or(|port| port.parse::<u16>().is_err()) {
        return Err(wrong("the port is not a number up to 65535"));
    }
    text.trim_end_matches('/')
        .parse()
        .map_err(|_| wrong("the host contains a character that is invalid in a host name"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    Node(String),
    /// The Node that runs this pod.
    Pod {
        namespace: String,
        name: String,
    },
    /// For a tool that reads all Nodes.
    Nobody,
}
