//! Checks the `Host` header of requests to a TCP port.
//!
//! A web page of another site can make its own name resolve to 127.0.0.1 and send requests to this port (DNS
//! rebinding). The `Host` header then contains the name of that site.

use crate::health::Health;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, Ipv6Addr};
use types::printable;

/// Middleware that refuses requests from web pages of other sites (DNS rebinding).
pub async fn own_name_only(State(health): State<Health>, request: Request, next: Next) -> Response {
    let host = host(request.uri(), request.headers().get(header::HOST));
    match host {
        Some(host) if is_ours(&host, &names(&health)) => next.run(request).await,
        host => {
            let host = host.map_or("no host at all".to_owned(), |host| {
                format!("the host {:?}", printable::value(&host))
            });
            let text = format!(
                "this request names {host}; use an address of this node, its name, or localhost\n"
            );
            (StatusCode::MISDIRECTED_REQUEST, text).into_response()
        }
    }
}

/// A host in the request target takes precedence over the `Host` header.
fn host(target: &Uri, header: Option<&HeaderValue>) -> Option<String> {
    let header = || header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    target.authority().map(ToString::to_string).or_else(header)
}

/// The names of this node that `Host` may contain.
fn names(health: &Health) -> Vec<String> {
    let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    hostname.into_iter().chain([health.name()]).collect()
}

/// True for an address, `localhost`, or a name of this node.
fn is_ours(host: &str, names: &[String]) -> bool {
    let Some(name) = without_port(host) else {
        return false;
    };
    if let Some(inner) = name.strip_prefix('[') {
        return inner.strip_suffix(']').is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok());
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let is = |known: &str| !known.is_empty() && name.eq_ignore_ascii_case(known);
    name.parse::<IpAddr>().is_ok() || is("localhost") || names.iter().any(|known| is(known))
}

/// `None` if the port is not a number.
fn without_port(host: &str) -> Option<&str> {
    let end = host.find(']').map_or(0, |end| end + 1);
    let (_, rest) = host.split_at_checked(end)?;
    let Some(colon) = rest.find(':') else {
        return Some(host);
    };
    let (name, port) = host.split_at_checked(end + colon)?;
    port.strip_prefix(':')?.parse::<u16>().ok().map(|_| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn host_header_with_address_or_own_name_is_accepted() {
        let names = ["node-1".to_owned(), "Node-1.example.com".to_owned(), String::new()];
        for (host, ours) in [
            ("127.0.0.1", true),
            ("127.0.0.1:8474", true),
            ("192.0.2.1:1", true),
            ("[::1]", true),
            ("[::1]:8474", true),
            ("localhost", true),
            ("LocalHost:8474", true),
            ("localhost.", true),
            ("node-1:8474", true),
            ("NODE-1", true),
            ("node-1.example.com", true),
            ("", false),
            (":8474", false),
            ("node-2", false),
            ("evil.example", false),
            ("evil.example:8474", false),
            ("node-1.evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost:x", false),
            ("localhost:99999", false),
            ("localhost:1:2", false),
            ("::1", false),
            ("[::1", false),
            ("[evil]", false),
            ("[::1]evil.example", false),
            ("user@localhost", false),
        ] {
            assert_eq!(is_ours(host, &names), ours, "{host:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn host_header_of_any_text_has_an_answer(host in "\\PC{0,40}|[a-z0-9:.\\[\\]]{0,20}") {
            is_ours(&host, &["node-1".to_owned()]);
        }
    }
}
