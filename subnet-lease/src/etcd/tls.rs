//! Configures TLS to etcd from files, and explains which side refused which certificate and why.

pub(super) mod error;

use super::options::EtcdOptions;
use crate::foreign::Certificate;
use error::{ClientCertificateError, FileOf, TlsError};
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
        let inner = inner.build().map_err(|error| TlsError::Authorities(error.to_string()))?;
        let seen = Seen::default();
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| TlsError::Setup(error.to_string()))?;
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Remembering { inner, seen: seen.clone() }));
        let (mut config, client) = match &options.identity {
            None => (builder.with_no_client_auth(), None),
            Some((cert, key)) => {
                let chain = certificates(cert, FileOf::Client).await?;
                let own = chain.first().cloned();
                let secret = PrivateKeyDer::from_pem_slice(&file(key).await?);
                let secret = secret.map_err(|_| TlsError::NoKey(key.clone()))?;
                let config =
                    builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
                        rustls::Error::InconsistentKeys(_) => {
                            TlsError::OtherKey { key: key.clone(), certificate: cert.clone() }
                        }
                        error => TlsError::Identity {
                            key: key.clone(),
                            certificate: cert.clone(),
                            fault: error.to_string(),
                        },
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
            other => TlsError::Failed(other.to_string()),
        }
    }

    /// The most likely reason why the server closed the connection before any reply.
    pub(super) fn silent_end(&self) -> TlsError {
        match &self.client {
            Some((path, own)) => {
                TlsError::MostLikelyRefused { path: path.clone(), own: described(own) }
            }
            None => TlsError::MostLikelyNoClient,
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
            let (good, _) =
                roots.add_parsable_certificates(certificates(path, FileOf::Authority).await?);
            if good == 0 {
                return Err(TlsError::NoAuthority(path.to_owned()));
            }
        }
        None => {
            let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
            let (good, _) =
                found.map_or((0, 0), |found| roots.add_parsable_certificates(found.certs));
            if good == 0 {
                return Err(TlsError::NoSystemAuthorities);
            }
        }
    }
    Ok(roots)
}

/// Fails if the bundle contains no certificate.
async fn certificates(path: &Path, of: FileOf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bundle = file(path).await?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bundle).collect();
    let found = found.map_err(|_| TlsError::NotPem(of, path.to_owned()))?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate(of, path.to_owned()));
    }
    Ok(found)
}

async fn file(path: &Path) -> Result<Vec<u8>, TlsError> {
    crate::file::read(path)
        .await
        .map_err(|error| TlsError::Unread(path.to_owned(), error.to_string()))
}

/// Why this node refuses etcd's certificate.
fn server_certificate(
    error: &CertificateError,
    seen: Option<&CertificateDer<'_>>,
    ca: Option<&Path>,
) -> TlsError {
    let names = match error {
        CertificateError::NotValidForNameContext { presented, .. } => presented.clone(),
        _ => Vec::new(),
    };
    TlsError::ServerCertificate {
        seen: seen.map(described),
        why: Certificate::of(error),
        clock: date(ASN1Time::now()),
        ca: ca.map(Path::to_owned),
        names,
        words: error.to_string(),
    }
}

/// Why etcd refuses this node's certificate or aborts the handshake, from its alert.
fn refused(alert: AlertDescription, own: Option<(&Path, &CertificateDer<'_>)>) -> TlsError {
    use AlertDescription as Alert;
    let why = match alert {
        Alert::CertificateExpired => ClientCertificateError::Expired,
        Alert::CertificateRevoked => ClientCertificateError::Revoked,
        Alert::UnknownCA => ClientCertificateError::Authority,
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied
        | Alert::CertificateRequired => ClientCertificateError::Invalid,
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
            return TlsError::Aborted { why, alert: u8::from(other) };
        }
    };
    match own {
        None => TlsError::NoClientCertificate,
        Some((path, own)) => {
            // Some versions report only "bad certificate".
            let why = if expired(own) { ClientCertificateError::Expired } else { why };
            TlsError::ClientCertificate { path: path.to_owned(), own: described(own), why }
        }
    }
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
