//! The common parts of URLs with several hosts: those of sentinels and of clusters. No text here, nor in `url`, repeats
//! anything that could contain a password.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::errors::text::NO_TLS;
use crate::settings::url;
use crate::settings::url_parameters::{self, Right};

const MAX_HOSTS: usize = 64;
const MAX_LENGTH: usize = 16 * 1024;

/// The differences between the URLs with several hosts.
pub(crate) struct Scheme {
    /// The word behind `redis+`.
    pub(crate) word: &'static str,
    /// The name for its hosts.
    pub(crate) hosts: &'static str,
    /// The port of a host without one.
    pub(crate) port: u16,
    /// The path that the right form shows behind the hosts, and its meaning.
    pub(crate) path: (&'static str, &'static str),
}

/// A URL with several hosts, taken apart.
pub(crate) struct UrlParts<'a> {
    scheme: &'static Scheme,
    /// The scheme as written.
    written: &'a str,
    secure: bool,
    insecure: bool,
    login: &'a str,
    hosts: &'a str,
    /// The path without its `/`.
    pub(crate) path: &'a str,
    query: &'a str,
    /// The fragment without its `#`; empty if it is `#insecure`.
    pub(crate) fragment: &'a str,
}

impl<'a> UrlParts<'a> {
    /// Takes a URL apart; `None` if the scheme is another.
    ///
    /// # Errors
    ///
    /// The reason, and the right form.
    pub(crate) fn of(
        url: &'a str,
        scheme: &'static Scheme,
    ) -> Option<Result<UrlParts<'a>, String>> {
        let url = url.trim();
        let (written, rest) = url.split_once("://")?;
        let secure = match written.strip_suffix(scheme.word)? {
            "redis+" | "redis-" | "valkey+" | "valkey-" => false,
            "rediss+" | "rediss-" | "valkeys+" | "valkeys-" => true,
            _ => return None,
        };
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let insecure = fragment == "insecure";
        let parts = UrlParts {
            scheme,
            written,
            secure,
            insecure,
            login,
            hosts,
            path,
            query,
            fragment: if insecure { "" } else { fragment },
        };
        Some(parts.checked(url))
    }

    fn checked(self, url: &str) -> Result<Self, String> {
        if self.secure && !cfg!(feature = "tls-rustls") {
            return Err(NO_TLS.into());
        }
        if url.len() > MAX_LENGTH {
            let length = url.len();
            return Err(format!(
                "it is {length} bytes long: at most {MAX_LENGTH} are taken"
            ));
        }
        if url.matches("://").count() > 1 {
            return Err("it has several URLs in it: give each node as an item of its own".into());
        }
        if url::is_torn(url) {
            return Err(url::ENCODED.into());
        }
        if self.insecure && !self.secure {
            let Scheme {
                word, port, path, ..
            } = self.scheme;
            return Err(format!(
                "#insecure is for TLS: write rediss+{word}://host:{port}{}",
                path.0
            ));
        }
        if self.login.contains('@') {
            return Err(match self.login.contains(',') {
                true => format!(
                    "it has several users: the servers have one, which stands before the first host: write {}",
                    self.right("user:password@host,host")
                ),
                false => url::ENCODED.into(),
            });
        }
        Ok(self)
    }

    /// The right form.
    pub(crate) fn right(&self, authority: &str) -> String {
        format!("{}://{authority}{}", self.written, self.scheme.path.0)
    }

    /// The right form with one host, and its port.
    pub(crate) fn right_form(&self) -> String {
        self.right(&format!("host:{}", self.scheme.port))
    }

    pub(crate) fn no_host(&self) -> String {
        let (_, meaning) = self.scheme.path;
        format!("it has no host: write {}{meaning}", self.right_form())
    }

    /// The hosts that the parameter `node` names. `other` takes the other parameters, each with its value.
    ///
    /// # Errors
    ///
    /// A value is not encoded, or `other` does not take it.
    pub(crate) fn parameters(
        &self,
        mut other: impl FnMut(&str, String) -> Result<(), String>,
    ) -> Result<Vec<String>, String> {
        let mut hosts = Vec::new();
        for (key, value) in url_parameters::pairs(self.query) {
            match (key, decoded(value)?) {
                ("node", host) => hosts.push(host),
                (key, value) => other(key, value)?,
            }
        }
        Ok(hosts)
    }

    /// Why a parameter is refused. `known`: the parameters that exist.
    pub(crate) fn unknown(&self, key: &str, known: &str) -> String {
        let before = format!("{}@{}/{}", self.login, self.hosts, self.path);
        url_parameters::unknown(key, (&before, self.query), &self.right_parameters(known))
    }

    /// Why the text behind the `#` is refused, if other clients write it as a parameter.
    pub(crate) fn in_fragment(&self, known: &str) -> Option<String> {
        url_parameters::in_fragment(self.fragment, &self.right_parameters(known))
    }

    fn right_parameters(&self, known: &str) -> Right {
        let port = self.scheme.port;
        Right {
            database: format!("{}/3 for the database 3", self.right_form()),
            login: self.right(&format!("user:password@host:{port}")),
            others: known.into(),
        }
    }

    /// The hosts, and those of the parameter `node`, with these settings. At least one.
    ///
    /// # Errors
    ///
    /// The reason, and the right form.
    pub(crate) fn hosts(
        &self,
        more: &[String],
        settings: &RedisConnectionInfo,
    ) -> Result<Vec<ConnectionInfo>, String> {
        if self.hosts.is_empty() {
            return Err(self.no_host());
        }
        if more.iter().any(String::is_empty) {
            let (right, port) = (self.right_form(), self.scheme.port);
            return Err(format!(
                "its parameter node has no host: write {right}?node=host:{port}"
            ));
        }
        let hosts = self.hosts.split(',').chain(more.iter().map(String::as_str));
        let count = hosts.clone().count();
        if count > MAX_HOSTS {
            let hosts = self.scheme.hosts;
            return Err(format!(
                "it names {count} {hosts}: at most {MAX_HOSTS} are taken"
            ));
        }
        hosts.map(|host| self.host(host, settings)).collect()
    }

    fn host(&self, host: &str, settings: &RedisConnectionInfo) -> Result<ConnectionInfo, String> {
        let (host, port) = self.host_and_port(host)?;
        let addr = match self.secure {
            true => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: self.insecure,
                tls_params: None,
            },
            false => ConnectionAddr::Tcp(host, port),
        };
        let info = addr.into_connection_info();
        let info = info.map_err(|error| url::reason(&error.to_string()).to_owned())?;
        let info = info.set_redis_settings(settings.clone());
        url::checked(info).map_err(|error| error.to_string())
    }

    fn host_and_port(&self, text: &str) -> Result<(String, u16), String> {
        let default = self.scheme.port;
        let bad_port = || format!("a port in it is not a number up to 65535; {}", url::ENCODED);
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        if let Some(rest) = text.strip_prefix('[') {
            let (host, behind) = rest.split_once(']').ok_or_else(bad_port)?;
            return match behind.strip_prefix(':') {
                None if behind.is_empty() => Ok((host.to_owned(), default)),
                Some(digits) => Ok((host.to_owned(), port(digits).ok_or_else(bad_port)?)),
                None => Err(bad_port()),
            };
        }
        if url::is_ipv6(text) {
            let right = self.right(&format!("[address]:{default}"));
            return Err(format!("an IPv6 address has brackets: write {right}"));
        }
        match text.split_once(':') {
            _ if text.is_empty() || text.starts_with(':') => {
                let right = self.right(&format!("host:{default},host:{default}"));
                Err(format!("it has a comma without a host: write {right}"))
            }
            Some((host, digits)) => Ok((host.to_owned(), port(digits).ok_or_else(bad_port)?)),
            None => Ok((text.to_owned(), default)),
        }
    }

    /// The user and the password before the hosts, which are those of the servers.
    ///
    /// # Errors
    ///
    /// User or password are not encoded.
    pub(crate) fn login(&self) -> Result<RedisConnectionInfo, String> {
        let (user, password) = self.login.split_once(':').unwrap_or((self.login, ""));
        Ok(login(&decoded(user)?, &decoded(password)?))
    }
}

/// The login. An empty text is not set.
pub(crate) fn login(user: &str, password: &str) -> RedisConnectionInfo {
    let info = RedisConnectionInfo::default();
    let info = match user {
        "" => info,
        user => info.set_username(user),
    };
    match password {
        "" => info,
        password => info.set_password(password),
    }
}

/// The number of a database; 0 if there is none.
pub(crate) fn database(text: &str) -> Option<i64> {
    match text {
        "" => Some(0),
        text => text.parse().ok().filter(|number| *number >= 0_i64),
    }
}

/// Decodes percent-encoding.
///
/// # Errors
///
/// The text is not encoded.
pub(crate) fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        let digit = |at: usize| char::from(*behind.get(at)?).to_digit(16);
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.extend(u8::try_from(high * 16 + low));
                rest = behind.get(2..).unwrap_or_default();
            }
            (b'%', ..) => return Err(url::ENCODED.into()),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).map_err(|_| url::ENCODED.into())
}

#[cfg(test)]
mod tests {
    use crate::settings::into_node::IntoNode;

    #[test]
    fn no_password_is_shown_wherever_it_is_written() {
        let passwords = [
            "hunter2",
            "hun@ter2",
            "hun/ter2",
            "hun:ter2",
            "hun?ter2",
            "hun#ter2",
            "hun,ter2",
            "hun ter2",
            "hun=ter2",
            "hun&ter2",
            "hun%ter2",
            "hun\nter2",
            "[hunter2]",
            "hun://ter2",
            "hünter2",
            "@hunter2@",
        ];
        let places = [
            "u:{}@h,h2/1",
            ":{}@h:99999/1",
            "{}@h,/1",
            "u:{}@/1",
            "u:{}@h1,u:{}@h2/1",
            "u:{}@h/x/{}",
            "u:{}@::1/1",
            "u:{}@h,redis://u:{}@h2",
            "u:{}@h/1?node=:",
            "u:{}@h/1?{}",
            "u:{}@h/1?pass={}&node=h",
            "h/1?pass={}",
            "h/1?pass=1&token={}#{}",
        ];
        for password in passwords {
            for place in places.map(|place| place.replace("{}", password)) {
                for url in [
                    place.replace('@', "%40"),
                    place.replace(':', "%3A").replace('@', "%40"),
                    place.replace(':', "：").replace('@', "＠"),
                    place,
                ] {
                    for scheme in ["redis+sentinel", "valkey-cluster", "rediss+cluster"] {
                        let url = format!("{scheme}://{url}");
                        let seen = match url.as_str().into_node() {
                            Ok(node) => format!("{node} {node:?}"),
                            Err(error) => error.to_string(),
                        };
                        for part in ["hun", "ter2", "hün"] {
                            assert!(!seen.contains(part), "{url}: {seen}");
                        }
                    }
                }
            }
        }
    }
}
