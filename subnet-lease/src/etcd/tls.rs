//! TLS to etcd: the configuration from files, and errors that say which side refused which certificate and why.

use super::options::EtcdOptions;
use crate::reason::{Kind, Reason};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The TLS configuration of one connection, and what is needed to explain a failure.
pub struct Tls {
    /// The configuration for rustls.
    pub config: Arc<ClientConfig>,
    seen: Seen,
    ca: Option<PathBuf>,
    client: Option<(PathBuf, CertificateDer<'static>)>,
}

/// The server's certificate that was refused last.
type Seen = Arc<Mutex<Option<CertificateDer<'static>>>>;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, or does not hold what it should.
    pub async fn read(options: &EtcdOptions) -> Result<Self, Reason> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(options.ca.as_deref()).await?), provider.clone());
        let inner = inner.build().map_err(|error| format!("the certificate authorities cannot be used: {error}"))?;
        let seen = Seen::default();
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Remembering { inner, seen: seen.clone() }));
        let (mut config, client) = match &options.identity {
            None => (builder.with_no_client_auth(), None),
            Some((cert, key)) => {
                let chain = certificates(cert, "client certificate", "--etcd-certfile").await?;
                let own = chain.first().cloned();
                let secret = PrivateKeyDer::from_pem_slice(&file(key).await?);
                let secret = secret.map_err(|_| format!("the file {} holds no private key in PEM form; --etcd-keyfile names it", key.display()))?;
                let config = builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => {
                        format!(
                            "the key {} does not belong to the certificate {}: name a key and certificate that belong together",
                            key.display(),
                            cert.display()
                        )
                    }
                    error => format!("the client certificate {} with the key {} cannot be used: {error}", cert.display(), key.display()),
                })?;
                (config, own.map(|own| (cert.clone(), own)))
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(config), seen, ca: options.ca.clone(), client })
    }

    /// Explains an error.
    pub fn explain(&self, error: &rustls::Error) -> Reason {
        match error {
            rustls::Error::InvalidCertificate(cause) => {
                let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
                server_certificate(cause, seen.as_ref(), self.ca.as_deref())
            }
            rustls::Error::AlertReceived(alert) => refused(*alert, self.client.as_ref().map(|(path, own)| (path.as_path(), own))),
            other => Reason::new(Kind::Tls, format!("TLS to etcd failed: {other}")),
        }
    }

    /// Explains why the server closed the connection before any answer, without a reason.
    pub fn silent_end(&self) -> Reason {
        let text = match &self.client {
            Some((path, own)) => format!(
                "etcd closes the connection after the TLS handshake; most likely it refuses this node's certificate {} ({})",
                path.display(),
                described(own)
            ),
            None => "etcd closes the connection after the TLS handshake; most likely it wants a client certificate: give --etcd-certfile and \
                     --etcd-keyfile"
                .to_owned(),
        };
        Reason::new(if self.client.is_some() { Kind::ClientCertificate } else { Kind::NoClientCertificate }, text)
    }
}

/// Verifies as usual, and remembers a certificate that it refuses.
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
        let verdict = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        if verdict.is_err() {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(end_entity.clone().into_owned());
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

async fn roots(ca: Option<&Path>) -> Result<RootCertStore, Reason> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let (good, _) = roots.add_parsable_certificates(certificates(path, "certificate authority", "--etcd-cafile").await?);
            if good == 0 {
                return Err(format!("no certificate in {} can be used as an authority (--etcd-cafile)", path.display()).into());
            }
        }
        None => {
            let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
            let (good, _) = found.map_or((0, 0), |found| roots.add_parsable_certificates(found.certs));
            if good == 0 {
                return Err("this system has no certificate authorities: name etcd's with --etcd-cafile, or install ca-certificates".into());
            }
        }
    }
    Ok(roots)
}

/// The certificates of a PEM bundle, at least one.
async fn certificates(path: &Path, what: &str, flag: &str) -> Result<Vec<CertificateDer<'static>>, Reason> {
    let bundle = file(path).await?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bundle).collect();
    let found = found.map_err(|_| format!("the {what} {} is not in PEM form ({flag})", path.display()))?;
    if found.is_empty() {
        return Err(format!("the file {} holds no certificate; {flag} names a {what} in PEM form", path.display()).into());
    }
    Ok(found)
}

async fn file(path: &Path) -> Result<Vec<u8>, Reason> {
    tokio::fs::read(path).await.map_err(|error| format!("cannot read the TLS file {}: {error}", path.display()).into())
}

/// Why this node refuses etcd's certificate.
fn server_certificate(cause: &CertificateError, seen: Option<&CertificateDer<'_>>, ca: Option<&Path>) -> Reason {
    use CertificateError as Cause;
    let authority = ca.map_or_else(|| "the authorities of this system".to_owned(), |ca| format!("an authority in {}", ca.display()));
    let clock = || date(ASN1Time::now());
    let (kind, why) = match cause {
        Cause::Expired | Cause::ExpiredContext { .. } => {
            ("expired", format!("it has expired (this node's clock: {}): renew it on etcd's side, or set the clock", clock()))
        }
        Cause::NotValidYet | Cause::NotValidYetContext { .. } => {
            ("not valid yet", format!("it is not valid yet (this node's clock: {}): set the clock", clock()))
        }
        Cause::UnknownIssuer | Cause::BadSignature => {
            ("unknown issuer", format!("{authority} did not sign it: name the one that did with --etcd-cafile"))
        }
        Cause::NotValidForName | Cause::NotValidForNameContext { .. } => {
            let names = match cause {
                Cause::NotValidForNameContext { presented, .. } if !presented.is_empty() => format!("it is issued for {}", presented.join(", ")),
                _ => "it is issued for another name".to_owned(),
            };
            ("name", format!("{names}: use one of those names in --etcd-endpoints, or reissue the certificate for this one"))
        }
        Cause::Revoked => ("revoked", "it was revoked: renew it on etcd's side".to_owned()),
        Cause::InvalidPurpose | Cause::InvalidPurposeContext { .. } => {
            ("purpose", "it may not be used by servers (extended key usage serverAuth): reissue it on etcd's side".to_owned())
        }
        Cause::BadEncoding => ("encoding", "it cannot be read: reissue it on etcd's side".to_owned()),
        other => ("other", other.to_string()),
    };
    let which = seen.map(|seen| format!(" ({})", described(seen))).unwrap_or_default();
    Reason::new(Kind::ServerCertificate(kind), format!("this node refuses etcd's certificate{which}: {why}"))
}

/// What etcd says about this node's certificate.
fn refused(alert: AlertDescription, own: Option<(&Path, &CertificateDer<'_>)>) -> Reason {
    use AlertDescription as Alert;
    let why = match alert {
        Alert::CertificateExpired => "it has expired: renew it",
        Alert::CertificateRevoked => "it was revoked: renew it",
        Alert::UnknownCA => "etcd does not know its authority (etcd's --trusted-ca-file): use a certificate of that authority",
        Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown | Alert::AccessDenied | Alert::CertificateRequired => {
            "use a valid client certificate, signed by an authority in etcd's --trusted-ca-file"
        }
        other => {
            let what = match other {
                Alert::HandshakeFailure => "the two sides have no TLS parameters (cipher suite, signature, key exchange) in common",
                Alert::ProtocolVersion => "the two sides have no TLS version in common",
                Alert::UnrecognisedName => "it serves no such name",
                Alert::NoApplicationProtocol => "it does not speak HTTP/2",
                Alert::InternalError => "an error inside etcd",
                _ => "for another reason",
            };
            return Reason::new(Kind::Tls, format!("etcd aborts the TLS handshake: {what} (alert {})", u8::from(other)));
        }
    };
    match own {
        None => {
            Reason::new(Kind::NoClientCertificate, "etcd wants a client certificate and this node has none: give --etcd-certfile and --etcd-keyfile")
        }
        Some((path, own)) => {
            // Some versions say no more than "bad certificate".
            let why = if expired(own) { "it has expired: renew it" } else { why };
            Reason::new(Kind::ClientCertificate, format!("etcd refuses this node's certificate {} ({}): {why}", path.display(), described(own)))
        }
    }
}

fn expired(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, read)| read.validity().not_after < ASN1Time::now())
}

/// Describes a certificate: subject, issuer and validity.
fn described(certificate: &CertificateDer<'_>) -> String {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return "which cannot be read".to_owned() };
    let validity = read.validity();
    let (subject, issuer) = (name(&read.subject().to_string()), name(&read.issuer().to_string()));
    format!("{subject}, issued by {issuer}, valid from {} until {}", date(validity.not_before), date(validity.not_after))
}

/// A name inside a certificate: foreign text, so made printable on one line.
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
