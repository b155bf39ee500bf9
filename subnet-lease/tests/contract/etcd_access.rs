//! Cases of access to etcd: certificates, users, passwords.

use crate::bed::{Bed, PREFIX};
use crate::case::cases;
use crate::etcd_server::{EtcdServer, Version};
use crate::node::{CONFIG, Follower, acquire, attrs, claim, eventually, hold, key};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::etcd::{EtcdManager, EtcdOptions};
use subnet_lease::manager::{Error, SubnetManager};
use subnet_lease::reason::LogOnce;

cases! {
    a_replaced_ca_bundle_is_read_again: [Etcd],
    passwords: [Etcd],
    authentication_comes_and_goes: [OwnEtcd],
    tls_refusal_names_the_side_and_the_reason: [Etcd],
}

/// The authority's certificate as PEM, and the issuer that signs with its key.
fn authority(name: &str) -> (String, rcgen::Issuer<'static, rcgen::KeyPair>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let cert = params.self_signed(&key).unwrap();
    (cert.pem(), rcgen::Issuer::new(params, key))
}

/// The modification time is `seconds` seconds in the future, because file systems may store only whole seconds.
fn write_newer(path: &Path, text: &str, seconds: u64) {
    std::fs::write(path, text).unwrap();
    std::fs::File::open(path)
        .unwrap()
        .set_modified(std::time::SystemTime::now() + Duration::from_secs(seconds))
        .unwrap();
}

/// root and flannel, which has only the permissions that flanneld needs.
fn add_users(server: &EtcdServer) {
    for args in [
        &["user", "add", "root:rootpw"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "flannel"],
        &["role", "grant-permission", "flannel", "read", &format!("{PREFIX}/config")],
        &[
            "role",
            "grant-permission",
            "flannel",
            "readwrite",
            "--prefix=true",
            &format!("{PREFIX}/subnets"),
        ],
        &["user", "add", "flannel:secret"],
        &["user", "grant-role", "flannel", "flannel"],
    ] {
        server.ctl(args);
    }
}

async fn passwords(bed: Bed) {
    // Tokens that expire during the test.
    let mut server =
        EtcdServer::new(bed.etcd().version).with(&["--auth-token-ttl=3".to_owned()], false);
    server.start();
    server.ctl(&["put", &format!("{PREFIX}/config"), CONFIG]);
    add_users(&server);
    for args in [&["user", "add", "nobody:nothing"][..], &["auth", "enable"]] {
        server.ctl(args);
    }
    let as_user = |name: &str, password: &str| -> Arc<dyn SubnetManager> {
        Arc::new(EtcdManager::new(EtcdOptions {
            endpoints: vec![server.endpoint()],
            prefix: PREFIX.to_owned(),
            user: Some((name.to_owned(), password.to_owned())),
            ..EtcdOptions::default()
        }))
    };
    let Err(Error::Refused(text)) = as_user("flannel", "wrong").network_config().await else {
        panic!("a wrong password is final")
    };
    assert!(
        text.to_string().contains("flannel") && !text.to_string().contains("wrong pass"),
        "{text}"
    );
    let Err(Error::Unavailable(text)) = as_user("nobody", "nothing").network_config().await else {
        panic!("no permission")
    };
    assert!(
        text.to_string().contains("permission denied")
            && text.to_string().contains("nobody")
            && text.to_string().contains("/config"),
        "{text}"
    );
    let (manager, one) = (as_user("flannel", "secret"), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    // Longer than the lifetime of a token.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let mut changed = attrs(&one);
    changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
    holding.attrs.send_replace(changed);
    let get = || {
        server
            .try_ctl(&[
                "--user=root:rootpw",
                "get",
                "--print-value-only",
                &format!("{PREFIX}/subnets/{}", key(&lease)),
            ])
            .unwrap_or_default()
    };
    eventually("a new token was fetched", || get().contains("192.168.56.201")).await;
}

/// The manager has a user before etcd requires authentication, and keeps it when etcd no longer does.
async fn authentication_comes_and_goes(bed: Bed) {
    bed.configure(CONFIG);
    let server = bed.etcd();
    add_users(server);
    let manager: Arc<dyn SubnetManager> = Arc::new(EtcdManager::new(EtcdOptions {
        endpoints: vec![server.endpoint()],
        prefix: PREFIX.to_owned(),
        user: Some(("flannel".to_owned(), "secret".to_owned())),
        ..EtcdOptions::default()
    }));
    let one = claim("one", 101);
    // Without authentication, no user name is required.
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(manager.clone());
    eventually("the list is in", || follower.len() == 1).await;
    let mut round = 0;
    let root = |args: &[&str]| {
        let with: Vec<&str> =
            ["--user=root:rootpw"].into_iter().chain(args.iter().copied()).collect();
        server.try_ctl(&with).or_else(|_| server.try_ctl(args)).unwrap()
    };
    let mut works = async |when: &str| {
        round += 1;
        let mut changed = attrs(&one);
        changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 200 + round));
        let address = changed.public_ip.unwrap().to_string();
        holding.attrs.send_replace(changed);
        let own = format!("{PREFIX}/subnets/{}", key(&lease));
        eventually(&format!("{when}: it writes"), || {
            root(&["get", "--print-value-only", &own]).contains(&address)
        })
        .await;
        root(&[
            "put",
            &format!("{PREFIX}/subnets/10.5.{}.0-24", 200 + round),
            r#"{"PublicIP":"192.168.56.9","PublicIPv6":null}"#,
        ]);
        eventually(&format!("{when}: it sees"), || {
            follower.has(&format!("10.5.{}.0-24", 200 + round))
        })
        .await;
        let fresh = manager.network_config().await;
        assert!(fresh.is_ok(), "{when}: {fresh:?}");
    };
    works("before").await;
    for _ in 0..2 {
        server.ctl(&["auth", "enable"]);
        works("enabled").await;
        server.ctl(&["--user=root:rootpw", "auth", "disable"]);
        works("disabled").await;
    }
    assert!(!holding.task.is_finished());
}

/// A directory with the certificates of two CAs, and with certificates that they signed.
struct Pki {
    folder: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut issuers = ["ca", "stranger"].map(|name| {
            let (pem, issuer) = authority(name);
            std::fs::write(folder.path().join(format!("{name}.pem")), pem).unwrap();
            Some(issuer)
        });
        let stranger = Self { folder, issuer: issuers[1].take().unwrap() };
        stranger.sign("foreign", "127.0.0.1", 2999);
        Self { issuer: issuers[0].take().unwrap(), ..stranger }
    }

    fn sign(&self, name: &str, address: &str, until: i32) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![address.to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(until, 2, 3));
        std::fs::write(
            self.path(&format!("{name}.pem")),
            params.signed_by(&key, &self.issuer).unwrap().pem(),
        )
        .unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn serve(&self, version: Version, name: &str, mutual: bool) -> EtcdServer {
        let mut args = vec![
            "--cert-file".to_owned(),
            self.text(&format!("{name}.pem")),
            "--key-file".to_owned(),
            self.text(&format!("{name}.key")),
        ];
        if mutual {
            args.extend([
                "--client-cert-auth".to_owned(),
                "--trusted-ca-file".to_owned(),
                self.text("ca.pem"),
            ]);
        }
        let mut server = EtcdServer::new(version).with(&args, true);
        server.start();
        server
    }
}

async fn a_replaced_ca_bundle_is_read_again(bed: Bed) {
    let pki = Pki::new();
    pki.sign("server", "127.0.0.1", 2999);
    let server = pki.serve(bed.etcd().version, "server", false);
    let ca = pki.path("ca.pem");
    let manager = EtcdManager::new(EtcdOptions {
        endpoints: vec![server.endpoint()],
        prefix: PREFIX.to_owned(),
        ca: Some(ca.clone()),
        ..EtcdOptions::default()
    });
    let [own, stranger] =
        [&ca, &pki.path("stranger.pem")].map(|path| std::fs::read_to_string(path).unwrap());
    for (seconds, bundle, is_reached) in [
        (0, own.clone(), true),
        (2, stranger.clone(), false),
        (4, format!("{stranger}{own}"), true),
    ] {
        write_newer(&ca, &bundle, seconds);
        let Err(Error::Unavailable(why)) = manager.network_config().await else {
            panic!("nothing is configured")
        };
        assert_eq!(why.to_string().contains("etcdctl put"), is_reached, "{why}");
    }
}

#[derive(Clone, Copy)]
enum Port {
    Tls,
    /// It requires a client certificate.
    Mutual,
    /// Its certificate has expired.
    Expired,
    /// Its certificate is for another address.
    OtherAddress,
    /// Another CA signed its certificate.
    OtherAuthority,
    PlainAskedForTls,
    TlsAskedForPlain,
}

/// Server, CA file and client certificate of each failing connection, and parts that the error's text must contain.
const TLS_FAILURES: &[(Port, &str, Option<&str>, &[&str])] = &[
    (
        Port::Expired,
        "ca.pem",
        None,
        &["this node refuses", "CN=old-server, issued by CN=ca", "until 2021-02-03"],
    ),
    (Port::OtherAddress, "ca.pem", None, &["issued for", "10.9.9.9", "--etcd-endpoints"]),
    (
        Port::OtherAuthority,
        "ca.pem",
        None,
        &["issued by CN=stranger", "ca.pem did not sign", "--etcd-cafile"],
    ),
    (Port::Mutual, "ca.pem", None, &["requires", "--etcd-certfile"]),
    (
        Port::Mutual,
        "ca.pem",
        Some("old-node"),
        &["etcd refuses", "old-node.pem", "until 2021-02-03"],
    ),
    (
        Port::Mutual,
        "ca.pem",
        Some("foreign"),
        &["foreign.pem", "issued by CN=stranger", "--trusted-ca-file"],
    ),
    (Port::Tls, "node.key", None, &["node.key", "--etcd-cafile"]),
    (Port::PlainAskedForTls, "ca.pem", None, &["does not speak TLS", "http://"]),
    (Port::TlsAskedForPlain, "ca.pem", None, &["speaks TLS", "https://", "--etcd-cafile"]),
    (Port::Mutual, "ca.pem", Some("node"), &["etcdctl put"]),
];

/// Every attempt fails for the same reason, whose text contains the given parts.
async fn assert_failure(manager: &EtcdManager, parts: &[&str]) {
    let mut logged = LogOnce::default();
    for turn in 0..12 {
        let Err(Error::Unavailable(why)) = manager.network_config().await else {
            panic!("{parts:?}: nothing is configured there")
        };
        for part in parts {
            assert!(why.to_string().contains(part), "{part:?} is missing: {why}");
        }
        assert_eq!(logged.news(Some(&why)), turn == 0, "another reason at try {turn}: {why}");
        assert!(
            !["AlertDescription", "BadCertificate", "UnknownIssuer", "Kind::", "transport error"]
                .iter()
                .any(|debug| why.to_string().contains(debug)),
            "{why}"
        );
    }
}

/// The text of a TLS failure names the refusing side, the refused certificate, its expiry date and the reason. Repeated attempts fail for the same
/// reason.
async fn tls_refusal_names_the_side_and_the_reason(bed: Bed) {
    let plain = bed.etcd();
    let pki = Pki::new();
    for (name, address, until) in [
        ("server", "127.0.0.1", 2999),
        ("old-server", "127.0.0.1", 2021),
        ("elsewhere", "10.9.9.9", 2999),
        ("node", "node", 2999),
        ("old-node", "node", 2021),
    ] {
        pki.sign(name, address, until);
    }
    let servers = [
        pki.serve(plain.version, "server", false),
        pki.serve(plain.version, "server", true),
        pki.serve(plain.version, "old-server", false),
        pki.serve(plain.version, "elsewhere", false),
        pki.serve(plain.version, "foreign", false),
    ];
    let endpoint = |port: Port| match port {
        Port::PlainAskedForTls => plain.endpoint().replace("http://", "https://"),
        Port::TlsAskedForPlain => servers[0].endpoint().replace("https://", "http://"),
        server => servers[server as usize].endpoint(),
    };
    for &(port, ca, identity, parts) in TLS_FAILURES {
        let manager = EtcdManager::new(EtcdOptions {
            endpoints: vec![endpoint(port)],
            prefix: PREFIX.to_owned(),
            ca: Some(pki.path(ca)),
            identity: identity
                .map(|name| (pki.path(&format!("{name}.pem")), pki.path(&format!("{name}.key")))),
            ..EtcdOptions::default()
        });
        assert_failure(&manager, parts).await;
    }
}
