//! `--require-backend`: limits which backends the network configuration may choose on this node.

use options::Store;
use subnet_lease::NetworkConfig;
use types::{Detail, Problem, printable};

/// An empty list accepts all backends. The error names the configured backend, the location of the configuration, and
/// the remedy.
pub(super) fn check(
    required: &[String],
    config: &NetworkConfig,
    store: &Store,
) -> Result<(), Problem> {
    if required.is_empty() || required.contains(&config.backend) {
        return Ok(());
    }
    let (place, at) = store.config_place();
    let found = match &*config.backend {
        "" => "(none)".into(),
        found => printable::value(found),
    };
    let text = format!(
        "this node does not accept backend type {found} (--require-backend={}); set Backend.Type in the network configuration to {}, in {at}. To use {found}, change --require-backend on this node",
        required.join(","),
        required.join(" or "),
    );
    Err(Problem::new("backend-not-taken", text).with(Detail::ConfigInvalid { place: Some(place) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use options::{Etcd, Store};
    use types::problem::ConfigPlace;

    fn config(backend: &str) -> NetworkConfig {
        NetworkConfig::parse(&format!(r#"{{"Network":"10.244.0.0/16"{backend}}}"#)).unwrap()
    }

    fn refusal(required: &[&str], backend: &str, store: &Store) -> String {
        let required: Vec<String> = required.iter().map(|name| (*name).to_owned()).collect();
        check(&required, &config(backend), store)
            .err()
            .map(|problem| problem.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn backend_is_accepted_only_if_required() {
        let store = Store::Dir("/leases".into());
        let vxlan = r#","Backend":{"Type":"VXLAN"}"#;
        for (required, backend, taken) in [
            (&[][..], vxlan, true),
            (&["vxlan"], vxlan, true),
            (&["wireguard", "vxlan"], vxlan, true),
            (&["wireguard"], vxlan, false),
            (&["vxlan"], r#","Backend":{"Type":"vxlan2"}"#, false),
            // Without a type, the backend is Go flannel's default.
            (&["udp"], "", true),
            (&["wireguard"], "", false),
            (&["wireguard"], r#","Backend":{}"#, false),
        ] {
            assert_eq!(
                refusal(required, backend, &store).is_empty(),
                taken,
                "{required:?} {backend}"
            );
        }
    }

    #[test]
    fn refused_backend_error_names_place_and_remedy() {
        let text = refusal(
            &["wireguard", "ipip"],
            r#","Backend":{"Type":"vxlan"}"#,
            &Store::Dir("/leases".into()),
        );
        assert_eq!(
            text,
            "this node does not accept backend type vxlan (--require-backend=wireguard,ipip); set Backend.Type in the network configuration to \
             wireguard or ipip, in the file /leases/config. To use vxlan, change --require-backend on this node"
        );
        let problem =
            check(&["ipip".to_owned()], &config(""), &Store::Dir("/leases".into())).unwrap_err();
        let place = Some(ConfigPlace::File("/leases/config".into()));
        assert_eq!(
            problem.detail,
            Detail::ConfigInvalid { place },
            "the doctor recognises the problem by its detail"
        );
        let endpoints = vec![options::Endpoint::parse("http://10.0.0.1:2379", false).unwrap()];
        let etcd = Store::Etcd(Etcd { endpoints, prefix: "/n".to_owned(), tls: None, user: None });
        assert!(
            refusal(&["ipip"], "", &etcd)
                .contains("in the key /n/config of etcd at http://10.0.0.1:2379")
        );
        let hostile = refusal(&["ipip"], ",\"Backend\":{\"Type\":\"a\\u001b[31m\\nb\"}", &etcd);
        assert!(!hostile.chars().any(char::is_control), "{hostile:?}");
    }
}
