//! Reads the flags of the store.

use crate::endpoint::{Endpoint, USER, clean, holds_user};
use crate::flags::{DirFlags, EtcdFlags, StoreFlags};
use crate::reader::{Reader, file, given};
use crate::store::{Etcd, Secret, Store, Tls};
use crate::value::{Origin, Value};
use std::path::PathBuf;
use types::Problem;

impl StoreFlags {
    /// For programs that have only the store flags. The error has every mistake in them and their environment
    /// variables.
    pub fn read(&self) -> Result<(Store, Vec<Problem>), Vec<Problem>> {
        let mut reader = Reader::default();
        let store = self.store(&mut reader);
        reader.end().map(|warnings| (store, warnings))
    }

    /// Adds mistakes and warnings about the flags to `reader`.
    pub(super) fn store(&self, reader: &mut Reader) -> Store {
        let Self { etcd, dir: DirFlags { subnet_dir }, kubernetes } = self;
        let kube = kubernetes.read(reader);
        let dir = given(subnet_dir);
        if let Some(kube) = kube {
            if let Some(dir) = dir {
                reader.wrong(refuse_two_stores(dir, "--kube-subnet-mgr", "Kubernetes"));
            }
            return Store::Kube(Box::new(kube));
        }
        let Some(dir) = dir else {
            return Store::Etcd(etcd.read(reader));
        };
        for other in etcd.chosen() {
            reader.wrong(refuse_two_stores(dir, &other.from, "etcd"));
        }
        Store::Dir(PathBuf::from(&dir.text))
    }
}

/// `other` is the flag or variable of the other store.
fn refuse_two_stores(dir: &Value<String>, other: &str, store: &str) -> Problem {
    Problem::new(
        "flag-two-stores",
        format!(
            "{} and {other} exclude each other: keep the leases either in a directory or in {store}",
            dir.from
        ),
    )
}

impl EtcdFlags {
    /// The values that the operator set for the etcd flags.
    fn chosen(&self) -> impl Iterator<Item = &Value<String>> {
        let Self {
            etcd_endpoints,
            etcd_prefix,
            etcd_cafile,
            etcd_certfile,
            etcd_keyfile,
            etcd_username,
            etcd_password,
        } = self;
        [
            etcd_endpoints,
            etcd_prefix,
            etcd_cafile,
            etcd_certfile,
            etcd_keyfile,
            etcd_username,
            etcd_password,
        ]
        .into_iter()
        .flatten()
        .filter(|value| value.origin != Origin::Default)
    }

    fn read(&self, reader: &mut Reader) -> Etcd {
        let client = together(
            (&self.etcd_certfile, "--etcd-keyfile: a client certificate and its key go together"),
            (&self.etcd_keyfile, "--etcd-certfile: a client certificate and its key go together"),
            reader,
        )
        .map(|(cert, key)| (PathBuf::from(cert), PathBuf::from(key)));
        let endpoints = endpoints(&self.etcd_endpoints, client.is_some(), reader);
        let tls = self.tls(client, &endpoints, reader);
        let user = together(
            (&self.etcd_username, "--etcd-password (or FLANNELD_ETCD_PASSWORD)"),
            (&self.etcd_password, "--etcd-username"),
            reader,
        )
        .map(|(user, password)| (user.to_owned(), Secret::new(password.to_owned())));
        Etcd { endpoints, prefix: self.prefix(reader), tls, user }
    }

    /// `Some` if at least one endpoint uses TLS. Warns about each endpoint without TLS.
    fn tls(
        &self,
        client: Option<(PathBuf, PathBuf)>,
        endpoints: &[Endpoint],
        reader: &mut Reader,
    ) -> Option<Tls> {
        let ca = file(&self.etcd_cafile);
        if ca.is_none() && client.is_none() {
            return None;
        }
        for endpoint in endpoints.iter().filter(|endpoint| !endpoint.tls) {
            reader.warnings.push(Problem::new(
                "tls-options-unused",
                format!(
                    "flanneld does not use the TLS options with {endpoint}, which is not encrypted; write https:// to use them"
                ),
            ));
        }
        endpoints.iter().any(|endpoint| endpoint.tls).then_some(Tls { ca, client })
    }

    /// The root of the keys as [`Etcd::prefix`] stores it: cleaned, and empty for `/`.
    fn prefix(&self, reader: &mut Reader) -> String {
        let Some(value) = self.etcd_prefix.last() else {
            return String::new();
        };
        let cleaned = clean(&value.text);
        if cleaned == "." || cleaned.starts_with("..") {
            let text = &value.text;
            reader.wrong(value.unusable(
                "not-a-root-for-keys",
                format!("{text:?} is not a root for keys; use a path such as /coreos.com/network"),
            ));
        }
        if cleaned == "/" { String::new() } else { cleaned }
    }
}

/// The values of two flags that require each other. If only one is set, records a mistake that names the missing
/// flag.
fn together<'a>(
    (first, needs): (&'a [Value<String>], &str),
    (second, is_needed_by): (&'a [Value<String>], &str),
    reader: &mut Reader,
) -> Option<(&'a str, &'a str)> {
    let (one, missing) = match (given(first), given(second)) {
        (Some(first), Some(second)) => return Some((&first.text, &second.text)),
        (None, None) => return None,
        (Some(first), None) => (first, needs),
        (None, Some(second)) => (second, is_needed_by),
    };
    reader.wrong(Problem::new("flag-alone", format!("{} also needs {missing}", one.from)));
    None
}

/// `tls_by_default` decides whether an address without a scheme uses TLS.
fn endpoints(values: &[Value<String>], tls_by_default: bool, reader: &mut Reader) -> Vec<Endpoint> {
    let Some(value) = values.last() else {
        return Vec::new();
    };
    let parts: Vec<&str> =
        value.text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    if parts.is_empty() {
        reader.wrong(value.unusable(
            "no-endpoint",
            "contains no endpoint; write an endpoint such as http://10.0.0.1:2379",
        ));
    }
    let (endpoints, wrong): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .map(|text| Endpoint::parse(text, tls_by_default))
        .partition(Result::is_ok);
    if !wrong.is_empty() && holds_user(&value.text) {
        // A comma in a password splits it into several parts, so no part of the value is shown.
        reader.wrong(value.unusable("endpoint-with-user", USER));
    } else {
        wrong.into_iter().filter_map(Result::err).for_each(|why| reader.wrong(value.error(why)));
    }
    endpoints.into_iter().flatten().collect()
}
