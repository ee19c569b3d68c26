//! TLS: which certificates are trusted, which one is shown, and what is wrong with them.

use std::fmt::Display;
use std::io::ErrorKind;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::errors::cause::Cause;
use crate::settings::tls::Tls;
use crate::values::sync::Mutex;

/// The TLS settings of all nodes. None: no node is reached over TLS.
///
/// A forked child may use them: nothing of them changes but certificates that are read later, and no thread waits for
/// those. (What differs between sessions is in [`Access`].)
#[derive(Clone)]
pub(crate) struct Trust(Result<Option<Arc<TlsParts>>, String>);

struct TlsParts {
    provider: Arc<CryptoProvider>,
    /// The verifier, or why there are no root certificates.
    verifier: Result<Arc<WebPkiServerVerifier>, NoRoots>,
    /// The verifier, if the certificates could not all be read at first, and were read since.
    read_later: Mutex<Option<Arc<WebPkiServerVerifier>>>,
    identity: Option<Arc<SingleCertAndKey>>,
    name: Option<ServerName<'static>>,
}

/// Why there are no root certificates.
enum NoRoots {
    /// This lasts until the configuration is changed.
    None(String),
    /// They could not be read, for a reason that lies in this process, or in this machine.
    Unread(String),
    /// Some could not be read, for such a reason. The others serve until all can be.
    Part(Arc<WebPkiServerVerifier>),
}

impl NoRoots {
    /// The verifier for the time being, or the cause of the error.
    fn for_now(&self) -> Result<Arc<WebPkiServerVerifier>, Cause> {
        match self {
            NoRoots::None(text) => Err(Cause::Tls(text.clone())),
            NoRoots::Unread(text) => Err(Cause::NoSocket(text.clone())),
            NoRoots::Part(verifier) => Ok(verifier.clone()),
        }
    }
}

/// The TLS settings of one node.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
    /// Whether the certificates could be read in part when the client was made: more may be there by now.
    pub(crate) in_part: bool,
}

#[cfg(all(test, feature = "tls"))]
impl Access {
    /// Accepts any certificate.
    pub(crate) fn of_provider(provider: Arc<CryptoProvider>, name: ServerName<'static>) -> Access {
        let parts = TlsParts {
            provider,
            verifier: Err(NoRoots::None(String::new())),
            read_later: Mutex::default(),
            identity: None,
            name: Some(name),
        };
        parts.access("", true).ok().unwrap()
    }
}

// rustls does not declare these traits for what it is given. Nothing of these types changes except the tickets, and a
// panic in mid-handshake ends the connection.
impl UnwindSafe for TlsParts {}
impl RefUnwindSafe for TlsParts {}
impl UnwindSafe for Access {}
impl RefUnwindSafe for Access {}

/// The program's crypto provider, or with the feature `tls` one that is always available.
fn provider() -> Result<Arc<CryptoProvider>, String> {
    if let Some(provider) = CryptoProvider::get_default() {
        return Ok(provider.clone());
    }
    #[cfg(feature = "tls")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(feature = "tls"))]
    Err("TLS needs a crypto provider: install one of rustls's as the process's default before, or use the feature \
         `tls` of redlock-sync, in Cargo.toml: redlock-sync = { version = \"0.1\", features = [\"tls\"] }"
        .into())
}

/// Whether this build can reach nodes over TLS.
pub(crate) fn supported() -> Result<(), String> {
    provider().map(drop)
}

/// Whether `tls` is usable.
pub(crate) fn validate(tls: &Tls) -> Result<(), String> {
    match tls.is_default() {
        true => Ok(()),
        false => TlsParts::new(tls, false).map(drop),
    }
}

impl Trust {
    /// Reads the certificates: the system's root certificates only if a node needs them.
    pub(crate) fn new<'a>(tls: &Tls, infos: impl IntoIterator<Item = &'a ConnectionInfo>) -> Trust {
        let over_tls = infos.into_iter().filter_map(|info| match info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => Some(!insecure),
            _ => None,
        });
        let secure = over_tls.reduce(|one, other| one || other);
        let parts = secure.map(|secure| TlsParts::new(tls, secure));
        Trust(parts.transpose().map(|parts| parts.map(Arc::new)))
    }

    /// How a node is reached over TLS. `None` if it is not.
    pub(crate) fn access(&self, addr: &ConnectionAddr) -> Option<Result<Access, Cause>> {
        let ConnectionAddr::TcpTls { host, insecure, .. } = addr else {
            return None;
        };
        let parts = self.0.as_ref().map_err(String::clone);
        let parts = parts.and_then(|parts| parts.as_ref().ok_or_else(String::new));
        Some(match parts {
            Ok(parts) => parts.access(host, *insecure),
            Err(text) => Err(Cause::Tls(text)),
        })
    }
}

impl TlsParts {
    fn new(tls: &Tls, system_roots: bool) -> Result<TlsParts, String> {
        let provider = provider()?;
        let verifier = match &tls.roots {
            Some(pem) => Ok(verifier(given_roots(pem)?, &provider)?),
            None if system_roots => found_verifier(&provider),
            None => Err(NoRoots::None("its certificate cannot be checked".into())),
        };
        let identity = match &tls.identity {
            Some((chain, key)) => Some(Arc::new(identity(chain, key, &provider)?)),
            None => None,
        };
        let name = tls.name.as_deref().map(server_name).transpose()?;
        Ok(TlsParts {
            provider,
            verifier,
            read_later: Mutex::default(),
            identity,
            name,
        })
    }

    /// The verifier. Certificates that could not be read are read once more.
    fn verifier(&self) -> Result<Arc<WebPkiServerVerifier>, Cause> {
        match &self.verifier {
            Ok(verifier) => Ok(verifier.clone()),
            Err(missing @ NoRoots::None(_)) => missing.for_now(),
            Err(missing) => {
                // In a forked child a thread that does not exist may hold the lock.
                if let Ok(Some(verifier)) = self.read_later.try_lock().as_deref() {
                    return Ok(verifier.clone());
                }
                let found = match found_verifier(&self.provider) {
                    Ok(found) => found,
                    Err(now) => return now.for_now().or_else(|_| missing.for_now()),
                };
                if let Ok(mut later) = self.read_later.try_lock() {
                    *later = Some(found.clone());
                }
                Ok(found)
            }
        }
    }

    fn access(&self, host: &str, insecure: bool) -> Result<Access, Cause> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Cause::Tls(error.to_string()))?;
        let builder = if insecure {
            let unchecked = Unchecked(self.provider.signature_verification_algorithms);
            let builder = builder.dangerous();
            builder.with_custom_certificate_verifier(Arc::new(unchecked))
        } else {
            builder.with_webpki_verifier(self.verifier()?)
        };
        let mut config = match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(identity.clone()),
            None => builder.with_no_client_auth(),
        };
        // One server's tickets are not shown to another one at the same host.
        config.resumption = Resumption::in_memory_sessions(2);
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host).map_err(Cause::Tls)?,
        };
        Ok(Access {
            config: Arc::new(config),
            name,
            in_part: !insecure && matches!(self.verifier, Err(NoRoots::Part(_))),
        })
    }
}

fn verifier(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| error.to_string())
}

fn given_roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("root certificates", pem)? {
        roots
            .add(certificate)
            .map_err(|error| wrong("root certificates", &error))?;
    }
    Ok(roots)
}

fn found_verifier(provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, NoRoots> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let passing = found.errors.iter().find(|error| may_pass(error));
    if !roots.is_empty() {
        let verifier = verifier(roots, provider).map_err(NoRoots::None)?;
        return match passing {
            None => Ok(verifier),
            Some(_) => Err(NoRoots::Part(verifier)),
        };
    }
    if let Some(error) = passing {
        return Err(NoRoots::Unread(format!("no root certificates: {error}")));
    }
    let why = found.errors.first();
    let why = why.map_or_else(String::new, |error| format!(" ({error})"));
    Err(NoRoots::None(format!(
        "no root certificates{why}: give them with Tls::root_certificates or --cacert, or install ca-certificates"
    )))
}

/// Whether another try may read what could not be read: the file is there, but this process has too many open files, for
/// example.
fn may_pass(error: &rustls_native_certs::Error) -> bool {
    match &error.kind {
        rustls_native_certs::ErrorKind::Io { inner, .. } => !matches!(
            inner.kind(),
            ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidData
        ),
        _ => false,
    }
}

fn identity(
    chain: &[u8],
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<SingleCertAndKey, String> {
    let chain = certificates("client certificate", chain)?;
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong("key", &"it is no key in PEM"))?;
    match CertifiedKey::from_der(chain, key, provider) {
        Ok(key) => Ok(SingleCertAndKey::from(key)),
        Err(Error::InconsistentKeys(_)) => {
            Err(wrong("key", &"it is not that of the client certificate"))
        }
        Err(Error::InvalidCertificate(_)) => {
            Err(wrong("client certificate", &"it is no certificate"))
        }
        Err(error) => Err(wrong("key", &error)),
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        // The error would repeat the input.
        _ => Err(wrong(what, &"no certificates in PEM")),
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    // A host may be in brackets, as in a URL.
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let name = ServerName::try_from(bare.unwrap_or(name).to_owned());
    name.map_err(|_| wrong("server name", &"it is no name of a host, and no IP address"))
}

fn wrong(what: &str, why: &dyn Display) -> String {
    format!("TLS, {what}: {why}")
}

/// Accepts any certificate, for `#insecure`. The server must still prove that it has the certificate's key.
#[derive(Debug)]
struct Unchecked(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// The alerts that repeat until the configuration of one side changes.
const REFUSALS: [AlertDescription; 13] = [
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::HandshakeFailure,
    AlertDescription::InsufficientSecurity,
    AlertDescription::NoCertificate,
    AlertDescription::ProtocolVersion,
    AlertDescription::UnknownCA,
    AlertDescription::UnrecognisedName,
    AlertDescription::UnsupportedCertificate,
];

/// The cause of a session's error, and what can be done about it.
pub(crate) fn cause(error: &Error, handshakes: bool) -> Cause {
    let hint = if handshakes || matches!(error, Error::AlertReceived(_)) {
        hint(error)
    } else {
        ""
    };
    match error {
        Error::AlertReceived(alert) if REFUSALS.contains(alert) => {
            Cause::Tls(format!("the server refuses: {alert:?}{hint}"))
        }
        Error::AlertReceived(alert) => Cause::Closed(format!("by the other side: {alert:?}")),
        error => {
            let text = error.to_string();
            // Behind the name of some errors are the bytes of the certificate.
            let name = text.split(" { ").next().unwrap_or(&text);
            Cause::Garbage(format!("{name}{hint}"))
        }
    }
}

const GIVE_CA: &str = " (give its CA with Tls::root_certificates or --cacert)";

fn hint(error: &Error) -> &'static str {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(bad) => match bad {
            // The last two: a CA that is trusted has the name of the one that signed it, and another key.
            Bad::UnknownIssuer
            | Bad::BadSignature
            | Bad::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => GIVE_CA,
            Bad::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                " (it has no subjectAltName: make one that has)"
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                " (Tls::server_name or --sni gives another name)"
            }
            Bad::Expired
            | Bad::ExpiredContext { .. }
            | Bad::NotValidYet
            | Bad::NotValidYetContext { .. } => " (look at this machine's clock, too)",
            Bad::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                " (it is a CA's own certificate: a server needs one that a CA has signed; #insecure at the end of the URL \
                 accepts it unchecked)"
            }
            _ => "",
        },
        Error::InvalidMessage(_) => " (does this port speak TLS?)",
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            " (give one with Tls::client_certificate or --cert)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The certificate of a server that has the name of a CA that is trusted, and another kind of key.
    #[test]
    fn a_certificate_of_a_name_that_another_key_has_gets_the_advice_and_no_bytes() {
        use CertificateError as Bad;
        let other_kind = Bad::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: vec![6, 8, 42],
            public_key_algorithm_id: vec![6, 9],
        };
        for (bad, name) in [
            (
                other_kind,
                "UnsupportedSignatureAlgorithmForPublicKeyContext",
            ),
            (Bad::BadSignature, "BadSignature"),
        ] {
            let Cause::Garbage(text) = cause(&Error::InvalidCertificate(bad), true) else {
                panic!("{name}");
            };
            let expected = format!("invalid peer certificate: {name}{GIVE_CA}");
            assert_eq!(text, expected);
        }
    }
}
