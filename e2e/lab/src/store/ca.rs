//! A certificate authority for etcd in the lab, and the certificates that it signs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// PEM files in a folder. A clone refers to the same files.
#[derive(Debug, Clone)]
pub struct Certificates {
    folder: PathBuf,
    servers: Vec<IpAddr>,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

impl Certificates {
    /// A certificate authority, a server certificate for the addresses in `servers`, and a client certificate.
    pub fn create(folder: &Path, servers: &[IpAddr]) -> Result<Certificates> {
        std::fs::create_dir_all(folder)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "flannel lab CA");
        std::fs::write(folder.join("ca.pem"), params.self_signed(&key)?.pem())?;
        let made = Certificates {
            folder: folder.to_owned(),
            servers: servers.to_vec(),
            issuer: Arc::new(Issuer::new(params, key)),
        };
        made.renew_server(None)?;
        made.renew_client()?;
        Ok(made)
    }

    /// Certificate and key.
    pub fn renew_client(&self) -> Result<()> {
        self.write_certificate_and_key("client", &[], &[ExtendedKeyUsagePurpose::ClientAuth], None)
    }

    /// Certificate and key, which etcd reads at the next handshake. The certificate is valid between the beginnings of the two `years`. With `None`,
    /// it has rcgen's default validity of many centuries.
    pub fn renew_server(&self, years: Option<(i32, i32)>) -> Result<()> {
        self.write_certificate_and_key(
            "server",
            &self.servers,
            &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            years,
        )
    }

    fn write_certificate_and_key(
        &self,
        name: &str,
        addresses: &[IpAddr],
        usages: &[ExtendedKeyUsagePurpose],
        years: Option<(i32, i32)>,
    ) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names =
            addresses.iter().map(|address| SanType::IpAddress(*address)).collect();
        params.extended_key_usages = usages.to_vec();
        if let Some((from, until)) = years {
            (params.not_before, params.not_after) =
                (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        }
        std::fs::write(self.folder.join(format!("{name}-key.pem")), key.serialize_pem())?;
        std::fs::write(
            self.folder.join(format!("{name}.pem")),
            params.signed_by(&key, &self.issuer)?.pem(),
        )?;
        Ok(())
    }

    /// The authority's certificate (PEM).
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The server's certificate (PEM).
    pub fn server(&self) -> PathBuf {
        self.folder.join("server.pem")
    }

    /// PEM.
    pub fn server_key(&self) -> PathBuf {
        self.folder.join("server-key.pem")
    }

    /// The client's certificate (PEM).
    pub fn client(&self) -> PathBuf {
        self.folder.join("client.pem")
    }

    /// PEM.
    pub fn client_key(&self) -> PathBuf {
        self.folder.join("client-key.pem")
    }
}
