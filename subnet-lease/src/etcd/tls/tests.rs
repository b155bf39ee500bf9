use super::*;
use rcgen::{CertificateParams, DnType, KeyPair};

fn certificate(name: &str, until: (i32, u8, u8)) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec!["etcd.example".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
}

#[test]
fn a_refused_client_certificate_is_one_reason() {
    use AlertDescription::{
        BadCertificate, CertificateExpired, CertificateRequired, InternalError, UnknownCA,
    };
    let certificate = certificate("node", (2999, 1, 1));
    for alert in [BadCertificate, UnknownCA, CertificateExpired] {
        let refusal = refused(alert, Some((Path::new("/pki/node.pem"), &certificate)));
        assert_eq!(refusal.code, "etcd-refuses-client-certificate");
    }
    for alert in [BadCertificate, CertificateRequired] {
        let TlsError { code, text, cause } = refused(alert, None);
        assert_eq!((code, cause), ("etcd-wants-client-certificate", StoreCause::User));
        assert!(text.starts_with("etcd requires a client certificate"), "{text}");
    }
    let aborted = refused(InternalError, None);
    assert_eq!(aborted.code, "etcd-tls-failed");
    assert!(aborted.text.ends_with("an error inside etcd (alert 80)"), "{aborted}");
}

#[test]
fn a_name_cannot_move_the_terminal() {
    let text = described(&certificate("a\u{1b}[2Jb\u{202e}c\nd", (2999, 1, 1)));
    assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
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
    let pem =
        CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let (cert, right, wrong) = (
        path("cert", &pem),
        path("right", &key.serialize_pem()),
        path("wrong", &other.serialize_pem()),
    );
    let empty = path("empty", "");
    let garbled =
        path("garbled", "-----BEGIN CERTIFICATE-----\nnot base64 !!\n-----END CERTIFICATE-----\n");
    let nothing = path("nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let options = |ca: &PathBuf, identity: Option<(&PathBuf, &PathBuf)>| EtcdOptions {
        ca: Some(ca.clone()),
        identity: identity.map(|(cert, key)| (cert.clone(), key.clone())),
        ..EtcdOptions::default()
    };
    assert!(Tls::read(&options(&cert, Some((&cert, &right)))).await.is_ok());
    for (options, parts) in [
        (options(&folder.path().join("absent"), None), ["cannot read the TLS file", "absent"]),
        (options(&empty, None), ["holds no certificate; correct --etcd-cafile", "empty"]),
        (options(&right, None), ["holds no certificate; correct --etcd-cafile", "right"]),
        (options(&garbled, None), ["not in PEM form; correct --etcd-cafile", "garbled"]),
        (options(&nothing, None), ["is usable as an authority", "nothing"]),
        (
            options(&cert, Some((&empty, &right))),
            ["holds no certificate; correct --etcd-certfile", "empty"],
        ),
        (options(&cert, Some((&cert, &cert))), ["holds no private key", "--etcd-keyfile"]),
        (options(&cert, Some((&cert, &wrong))), ["does not belong to the certificate", "wrong"]),
    ] {
        let Err(why) = Tls::read(&options).await else { panic!("{parts:?} is taken") };
        assert!(parts.iter().all(|part| why.to_string().contains(part)), "{parts:?}: {why}");
    }
}
