//! The TLS settings of a program.

use std::fmt;
use std::sync::Arc;

type Pem = Arc<[u8]>;

/// How nodes at `rediss://` are reached: which certificates are trusted, and which one this program shows. For
/// [`Options::tls`](crate::Options::tls).
///
/// ```
/// use redlock_sync::{Redlock, Tls};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new()
///     .root_certificates(std::fs::read("/etc/redis/ca.crt")?)
///     .client_certificate(
///         std::fs::read("/etc/redis/client.crt")?,
///         std::fs::read("/etc/redis/client.key")?,
///     );
/// let redlock = Redlock::new(["rediss://10.0.0.1", "rediss://10.0.0.2", "rediss://10.0.0.3"])?
///     .adjust(|options| options.tls(tls))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    pub(crate) roots: Option<Pem>,
    /// Certificates and key.
    pub(crate) identity: Option<(Pem, Pem)>,
    pub(crate) name: Option<Arc<str>>,
}

impl Tls {
    /// The root certificates of the operating system, and no certificate for this program.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// The certificates of the trusted CAs, in PEM, all in one text. Those of the operating system are then no longer
    /// trusted.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Tls {
        self.roots = Some(pem.as_ref().into());
        self
    }

    /// The certificate that this program shows to servers that ask for one, followed by any between it and that of
    /// the CA; and its private key (PKCS#8, PKCS#1 or SEC1). Both in PEM.
    #[must_use]
    pub fn client_certificate(mut self, chain: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Tls {
        self.identity = Some((chain.as_ref().into(), key.as_ref().into()));
        self
    }

    /// The name that the certificates of all nodes must be for, and that the servers see (SNI). Defaults to the host
    /// in each URL.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.name = Some(name.into().into());
        self
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Tls::default()
    }
}

/// Shows neither the certificates nor the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("root_certificates", &self.roots.is_some())
            .field("client_certificate", &self.identity.is_some())
            .field("server_name", &self.name)
            .finish()
    }
}
