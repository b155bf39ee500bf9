//! Configures TLS to etcd from files, and explains which side refused which certificate and why.

pub(super) mod error;

use super::options::EtcdOptions;
use crate::foreign::Certificate;
use error::{TlsError, code_of_refusal, refusal_text};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::problem::StoreCause;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

pub(super) struct Tls {
    pub config: Arc<ClientConfig>,
    seen: Seen,
    ca: Option<PathBuf>,
    client: Option<(PathBuf, CertificateDer<'static>)>,
}

/// The server certificate that this node last refused.
type Seen = Arc<Mutex<Option<CertificateDer<'static>>>>;

impl Tls {
    pub(super) async fn read(options: &EtcdOptions) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots(options.ca.as_deref()).await?),
            provider.clone(),
        );
        let inner = inner.build().map_err(|error| {
            let text = format!("cannot use the certificate authorities: {error}");
            TlsError::new("tls-authorities-unusable", text)
        })?;
        let seen = Seen::default();
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder
            .map_err(|error| TlsError::new("tls-setup", format!("cannot set up TLS: {error}")))?;
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Remembering { inner, seen: seen.clone() }));
        let (mut config, client) = match &options.identity {
            None => (builder.with_no_client_auth(), None),
            Some((cert, key)) => {
                let chain = certificates(cert, "client certificate", "--etcd-certfile").await?;
                let own = chain.first().cloned();
                let secret = PrivateKeyDer::from_pem_slice(&file(key).await?);
                let (path, key) = (cert.display(), key.display());
                let secret = secret.map_err(|_| {
                    let text = format!(
                        "the file {key} holds no private key in PEM form; correct --etcd-keyfile"
                    );
                    TlsError::new("tls-file-without-key", text)
                })?;
                let config =
                    builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
                        rustls::Error::InconsistentKeys(_) => TlsError::new(
                            "tls-key-of-another-certificate",
                            format!(
                                "the key {key} does not belong to the certificate {path}; name a key and certificate that belong together"
                            ),
                        ),
                        error => TlsError::new(
                            "tls-identity-unusable",
                            format!(
                                "cannot use the client certificate {path} with the key {key}: {error}"
                            ),
                        ),
                    })?;
                (config, own.map(|own| (cert.clone(), own)))
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(config), seen, ca: options.ca.clone(), client })
    }

    /// The result names the involved files and certificates.
    pub(super) fn explain(&self, error: &rustls::Error) -> TlsError {
        match error {
            rustls::Error::InvalidCertificate(cause) => {
                let seen = self.seen.lock().clone();
                server_certificate(cause, seen.as_ref(), self.ca.as_deref())
            }
            rustls::Error::AlertReceived(alert) => {
                refused(*alert, self.client.as_ref().map(|(path, own)| (path.as_path(), own)))
            }
            other => TlsError::new("etcd-tls-failed", format!("TLS to etcd failed: {other}")),
        }
    }

    /// The most likely reason why the server closed the connection before any reply.
    pub(super) fn silent_end(&self) -> TlsError {
        match &self.client {
            Some((path, own)) => {
                let (path, own) = (path.display(), described(own));
                let text = format!(
                    "etcd closes the connection after the TLS handshake, most likely because it refuses this node's certificate {path} ({own})"
                );
                TlsError::new("etcd-refuses-client-certificate", text)
            }
            None => certificate_wanted(
                "etcd closes the connection after the TLS handshake, most likely because it requires a client certificate; set --etcd-certfile and \
                 --etcd-keyfile",
            ),
        }
    }
}

/// Verifies server certificates as rustls does by default, and keeps a refused one for the error message.
#[derive(Debug)]
struct Remembering {
    inner: Arc<WebPkiServerVerifier>,
    seen: Seen,
}

impl ServerCertVerifier for Remembering {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict = self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        if verdict.is_err() {
            *self.seen.lock() = Some(end_entity.clone().into_owned());
        }
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

async fn roots(ca: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let found = certificates(path, "certificate authority", "--etcd-cafile").await?;
            let (good, _) = roots.add_parsable_certificates(found);
            if good == 0 {
                let text = format!(
                    "no certificate in {} is usable as an authority; correct --etcd-cafile",
                    path.display()
                );
                return Err(TlsError::new("tls-file-without-authority", text));
            }
        }
        None => {
            let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
            let (good, _) =
                found.map_or((0, 0), |found| roots.add_parsable_certificates(found.certs));
            if good == 0 {
                let text = "this system has no certificate authorities; name etcd's authority with --etcd-cafile, or install ca-certificates";
                return Err(TlsError::new("tls-no-system-authorities", text));
            }
        }
    }
    Ok(roots)
}

/// Fails if the bundle contains no certificate. `what` should be in the file, which `flag` names.
async fn certificates(
    path: &Path,
    what: &str,
    flag: &str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bundle = file(path).await?;
    let path = path.display();
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bundle).collect();
    let found = found.map_err(|_| {
        let text = format!("the {what} {path} is not in PEM form; correct {flag}");
        TlsError::new("tls-file-not-pem", text)
    })?;
    if found.is_empty() {
        let text = format!(
            "the file {path} holds no certificate; correct {flag}, which must name a {what} in PEM form"
        );
        return Err(TlsError::new("tls-file-without-certificate", text));
    }
    Ok(found)
}

async fn file(path: &Path) -> Result<Vec<u8>, TlsError> {
    crate::file::read(path).await.map_err(|error| {
        let text = format!("cannot read the TLS file {}: {error}", path.display());
        TlsError::new("tls-file-unreadable", text)
    })
}

/// Why this node refuses etcd's certificate.
fn server_certificate(
    error: &CertificateError,
    seen: Option<&CertificateDer<'_>>,
    ca: Option<&Path>,
) -> TlsError {
    let names: &[String] = match error {
        CertificateError::NotValidForNameContext { presented, .. } => presented,
        _ => &[],
    };
    let why = Certificate::of(error);
    let seen = seen.map_or_else(String::new, |seen| format!(" ({})", described(seen)));
    let words = refusal_text(why, &date(ASN1Time::now()), ca, names, &error.to_string());
    let text = format!("this node refuses etcd's certificate{seen}: {words}");
    TlsError { cause: why.cause(), ..TlsError::new(code_of_refusal(why), text) }
}

fn certificate_wanted(text: &str) -> TlsError {
    let error = TlsError::new("etcd-wants-client-certificate", text);
    TlsError { cause: StoreCause::User, ..error }
}

/// Why etcd refuses this node's certificate or aborts the handshake, from its alert.
fn refused(alert: AlertDescription, own: Option<(&Path, &CertificateDer<'_>)>) -> TlsError {
    use AlertDescription as Alert;
    const EXPIRED: (StoreCause, &str) =
        (StoreCause::CertificateExpired, "the certificate has expired; renew the certificate");
    let refusal = match alert {
        Alert::CertificateExpired => EXPIRED,
        Alert::CertificateRevoked => {
            (StoreCause::Tls, "the certificate was revoked; renew the certificate")
        }
        Alert::UnknownCA => (
            StoreCause::CertificateAuthority,
            "etcd does not know the certificate's authority; use a certificate of an authority in etcd's --trusted-ca-file",
        ),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied
        | Alert::CertificateRequired => (
            StoreCause::CertificateAuthority,
            "use a valid client certificate, signed by an authority in etcd's --trusted-ca-file",
        ),
        other => {
            let why = match other {
                Alert::HandshakeFailure => {
                    "the two sides have no TLS parameters (cipher suite, signature, key exchange) in common"
                }
                Alert::ProtocolVersion => "the two sides have no TLS version in common",
                Alert::UnrecognisedName => "etcd does not serve the requested server name",
                Alert::NoApplicationProtocol => "etcd does not speak HTTP/2",
                Alert::InternalError => "an error inside etcd",
                _ => "for another reason",
            };
            // The number of a TLS alert is that of RFC 8446, section 6.
            let text = format!("etcd aborts the TLS handshake: {why} (alert {})", u8::from(other));
            return TlsError::new("etcd-tls-failed", text);
        }
    };
    let Some((path, own)) = own else {
        return certificate_wanted(
            "etcd requires a client certificate and this node has none; set --etcd-certfile and --etcd-keyfile",
        );
    };
    // Some versions report only "bad certificate".
    let (cause, why) = if expired(own) { EXPIRED } else { refusal };
    let (path, own) = (path.display(), described(own));
    let text = format!("etcd refuses this node's certificate {path} ({own}): {why}");
    TlsError { cause, ..TlsError::new("etcd-refuses-client-certificate", text) }
}

fn expired(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, read)| read.validity().not_after < ASN1Time::now())
}

/// Subject, issuer and validity.
fn described(certificate: &CertificateDer<'_>) -> String {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else {
        return "which cannot be read".to_owned();
    };
    let validity = read.validity();
    let (subject, issuer) = (name(&read.subject().to_string()), name(&read.issuer().to_string()));
    format!(
        "{subject}, issued by {issuer}, valid from {} until {}",
        date(validity.not_before),
        date(validity.not_after)
    )
}

/// An untrusted name from a certificate as printable text on one line.
fn name(text: &str) -> String {
    const LONGEST: usize = 120;
    let text: String = text
        .chars()
        .filter(|c| !c.is_control() && !matches!(*c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
        .take(LONGEST)
        .collect();
    if text.is_empty() { "no name".to_owned() } else { text }
}

fn date(time: ASN1Time) -> String {
    let time = time.to_datetime();
    let (year, month, day) = time.to_calendar_date();
    format!("{year:04}-{:02}-{day:02} {:02}:{:02} UTC", u8::from(month), time.hour(), time.minute())
}

#[cfg(test)]
mod tests;
