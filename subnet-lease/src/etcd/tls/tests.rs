use super::*;
use crate::reason::Lasting;
use rcgen::{CertificateParams, DnType, KeyPair};

fn certificate(name: &str, until: (i32, u8, u8)) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec!["etcd.example".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
    params
        .self_signed(&KeyPair::generate().unwrap())
        .unwrap()
        .der()
        .clone()
}

#[test]
fn the_servers_certificate_is_named_with_its_end() {
    let seen = certificate("old server", (2021, 2, 3));
    let (time, not_after) = (
        UnixTime::now(),
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_612_310_400)),
    );
    let expired = server_certificate(
        &CertificateError::ExpiredContext { time, not_after },
        Some(&seen),
        None,
    );
    for part in [
        "this node refuses etcd's certificate",
        "CN=old server",
        "until 2021-02-03 00:00 UTC",
        "has expired",
        "renew it on etcd's side",
    ] {
        assert!(expired.to_string().contains(part), "{part}: {expired}");
    }
    // The text contains the time, but the topic does not.
    let later = server_certificate(&CertificateError::Expired, Some(&seen), None);
    assert_eq!(expired.topic(), later.topic());
    let expired = (expired.to_string(), expired.topic());
    let stranger = server_certificate(
        &CertificateError::UnknownIssuer,
        Some(&seen),
        Some(Path::new("/pki/ca.pem")),
    );
    assert!(
        stranger
            .to_string()
            .contains("an authority in /pki/ca.pem did not sign the certificate")
            && stranger.topic() != expired.1,
        "{stranger}"
    );
    let presented = vec!["etcd.example".to_owned()];
    let expected = ServerName::try_from("10.0.0.1").unwrap();
    let name = server_certificate(
        &CertificateError::NotValidForNameContext {
            expected,
            presented,
        },
        None,
        None,
    );
    assert!(
        name.to_string().contains("issued for etcd.example")
            && name.to_string().contains("--etcd-endpoints"),
        "{name}"
    );
}

#[test]
fn a_refused_client_certificate_is_one_reason() {
    let (good, old) = (
        certificate("node", (2999, 1, 1)),
        certificate("node", (2021, 2, 3)),
    );
    let path = Path::new("/pki/node.pem");
    for alert in [
        AlertDescription::BadCertificate,
        AlertDescription::UnknownCA,
        AlertDescription::CertificateExpired,
    ] {
        let reason = refused(alert, Some((path, &good)));
        assert_eq!(reason.topic(), "etcd-refuses-client-certificate");
        assert!(
            reason
                .to_string()
                .starts_with("etcd refuses this node's certificate /pki/node.pem (CN=node,"),
            "{reason}"
        );
    }
    assert!(
        refused(AlertDescription::UnknownCA, Some((path, &good)))
            .to_string()
            .contains("--trusted-ca-file")
    );
    let silent = refused(AlertDescription::BadCertificate, Some((path, &old)));
    assert!(
        silent.to_string().contains("the certificate has expired")
            && silent.to_string().contains("until 2021-02-03"),
        "{silent}"
    );
    for alert in [
        AlertDescription::BadCertificate,
        AlertDescription::CertificateRequired,
    ] {
        let none = refused(alert, None);
        assert!(
            none == TlsTrouble::NoClientCertificate && none.to_string().contains("--etcd-certfile"),
            "{none}"
        );
    }
    let other = refused(AlertDescription::InternalError, None);
    assert!(
        matches!(other, TlsTrouble::Aborted { .. }) && !other.to_string().contains("InternalError"),
        "{other}"
    );
}

#[test]
fn a_name_cannot_move_the_terminal() {
    let text = described(&certificate("a\u{1b}[2Jb\u{202e}c\nd", (2999, 1, 1)));
    assert!(
        !text.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{text:?}"
    );
}

#[tokio::test]
async fn files_that_do_not_hold_what_they_should_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let pem = CertificateParams::new(vec!["a".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap()
        .pem();
    let (cert, right, wrong) = (
        path("cert", &pem),
        path("right", &key.serialize_pem()),
        path("wrong", &other.serialize_pem()),
    );
    let empty = path("empty", "");
    let garbled = path(
        "garbled",
        "-----BEGIN CERTIFICATE-----\nnot base64 !!\n-----END CERTIFICATE-----\n",
    );
    let nothing = path(
        "nothing",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let options = |ca: &PathBuf, identity: Option<(&PathBuf, &PathBuf)>| EtcdOptions {
        ca: Some(ca.clone()),
        identity: identity.map(|(cert, key)| (cert.clone(), key.clone())),
        ..EtcdOptions::default()
    };
    assert!(
        Tls::read(&options(&cert, Some((&cert, &right))))
            .await
            .is_ok()
    );
    for (options, parts) in [
        (
            options(&folder.path().join("absent"), None),
            ["cannot read the TLS file", "absent"],
        ),
        (
            options(&empty, None),
            ["holds no certificate; correct --etcd-cafile", "empty"],
        ),
        (
            options(&right, None),
            ["holds no certificate; correct --etcd-cafile", "right"],
        ),
        (
            options(&garbled, None),
            ["not in PEM form; correct --etcd-cafile", "garbled"],
        ),
        (
            options(&nothing, None),
            ["is usable as an authority", "nothing"],
        ),
        (
            options(&cert, Some((&empty, &right))),
            ["holds no certificate; correct --etcd-certfile", "empty"],
        ),
        (
            options(&cert, Some((&cert, &cert))),
            ["holds no private key", "--etcd-keyfile"],
        ),
        (
            options(&cert, Some((&cert, &wrong))),
            ["does not belong to the certificate", "wrong"],
        ),
    ] {
        let Err(why) = Tls::read(&options).await else {
            panic!("{parts:?} is taken")
        };
        assert!(
            parts.iter().all(|part| why.to_string().contains(part)),
            "{parts:?}: {why}"
        );
    }
}
