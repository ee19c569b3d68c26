//! The URL of a set that sentinels watch: `redis+sentinel://[user:password@]host[:26379][,host…]/master[/database]`, in
//! the forms of other clients, too. As in `url`, no text here repeats anything in which a password could stand.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::config_error::ConfigError;
use crate::node_address::{NodeAddress, Set};
use crate::text::NO_TLS;
use crate::url;

const MAX_SENTINELS: usize = 64;
const MAX_LENGTH: usize = 16 * 1024;
const PORT: u16 = 26379;
/// The parameters that name the master; then the path is the database.
const NAMES: [&str; 4] = [
    "sentinelMasterId",
    "sentinelServiceName",
    "master",
    "master_name",
];
const USERS: [&str; 2] = ["sentinel_username", "sentinelUsername"];
const PASSWORDS: [&str; 2] = ["sentinel_password", "sentinelPassword"];

/// The set that a URL names; `None`: its scheme is that of a server.
///
/// # Errors
///
/// What it should be.
pub(crate) fn parse(url: &str) -> Option<Result<NodeAddress, ConfigError>> {
    let url = url.trim();
    let (scheme, rest) = url.split_once("://")?;
    let secure = match scheme.strip_suffix("sentinel")? {
        "redis+" | "redis-" | "valkey+" | "valkey-" => false,
        "rediss+" | "rediss-" | "valkeys+" | "valkeys-" => true,
        _ => return None,
    };
    let wrong = |text: String| ConfigError::new(text);
    Some(set(url, rest, secure).map_err(|text| wrong(text.replace("SCHEME", scheme))))
}

/// The texts name the scheme as `SCHEME`.
fn set(url: &str, rest: &str, secure: bool) -> Result<NodeAddress, String> {
    if secure && !cfg!(feature = "tls-rustls") {
        return Err(NO_TLS.into());
    }
    if url.len() > MAX_LENGTH {
        let length = url.len();
        return Err(format!(
            "it is {length} bytes long: at most {MAX_LENGTH} are taken"
        ));
    }
    if rest.contains("://") {
        return Err("it has several URLs in it: give each node as an item of its own".into());
    }
    if url::is_torn(url) {
        return Err(url::ENCODED.into());
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let parameters = Parameters::of(query, fragment)?;
    if parameters.insecure && !secure {
        return Err("#insecure is for TLS: write rediss+sentinel://host:26379/NAME".into());
    }
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    if login.contains('@') {
        return Err(match login.contains(',') {
            true => "it has several users: the servers have one, which stands before the first host: write \
                     SCHEME://user:password@host,host/NAME"
                .into(),
            false => url::ENCODED.into(),
        });
    }
    let sentinels = sentinels(hosts, &parameters, secure)?;
    let (name, database) = name_and_database(path, parameters.name)?;
    let servers = RedisConnectionInfo::default().set_db(database);
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let servers = with_login(servers, &decoded(user)?, &decoded(password)?);
    let Some(first) = sentinels.first() else {
        return Err(NO_HOST.into());
    };
    let info = first.clone().set_redis_settings(servers);
    Ok(NodeAddress::of_set(info, Set { name, sentinels }))
}

const NO_HOST: &str = "it has no host: write SCHEME://host:26379/NAME, with the name of the master";

struct Parameters {
    name: Option<String>,
    user: String,
    password: String,
    hosts: Vec<String>,
    insecure: bool,
}

impl Parameters {
    fn of(query: &str, fragment: &str) -> Result<Parameters, String> {
        let mut found = Parameters {
            name: None,
            user: String::new(),
            password: String::new(),
            hosts: Vec::new(),
            insecure: fragment == "insecure",
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match key {
                _ if NAMES.contains(&key) => found.names(value)?,
                _ if USERS.contains(&key) => found.user = value,
                _ if PASSWORDS.contains(&key) => found.password = value,
                "node" => found.hosts.push(value),
                _ => return Err(unknown(key)),
            }
        }
        if !fragment.is_empty() && !found.insecure {
            // It may be the rest of a password.
            if !found.password.is_empty() {
                return Err(url::ENCODED.into());
            }
            found.names(decoded(fragment)?)?;
        }
        Ok(found)
    }

    fn names(&mut self, name: String) -> Result<(), String> {
        match self.name.replace(name) {
            None => Ok(()),
            Some(_) => Err(
                "it has two names of a master: write SCHEME://host:26379/NAME for each, as items of their own"
                    .into(),
            ),
        }
    }
}

/// It is named only if it looks like one of ours: a password may stand there.
fn unknown(key: &str) -> String {
    let ours = key.starts_with("sentinel") && key.len() <= 32;
    let named = match ours && key.chars().all(|c| c.is_ascii_alphabetic() || c == '_') {
        true => format!("its parameter {key} is not known"),
        false => "it has a parameter that is not known".into(),
    };
    format!("{named}: sentinel_username and sentinel_password are")
}

fn sentinels(
    hosts: &str,
    parameters: &Parameters,
    secure: bool,
) -> Result<Vec<ConnectionInfo>, String> {
    if hosts.is_empty() {
        return Err(NO_HOST.into());
    }
    let hosts = hosts
        .split(',')
        .chain(parameters.hosts.iter().map(String::as_str));
    let count = hosts.clone().count();
    if count > MAX_SENTINELS {
        return Err(format!(
            "it names {count} sentinels: at most {MAX_SENTINELS} are taken"
        ));
    }
    let settings = || {
        with_login(
            RedisConnectionInfo::default(),
            &parameters.user,
            &parameters.password,
        )
    };
    let one = |host: &str| {
        let (host, port) = host_and_port(host)?;
        let addr = match secure {
            true => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: parameters.insecure,
                tls_params: None,
            },
            false => ConnectionAddr::Tcp(host, port),
        };
        let info = addr.into_connection_info();
        let info = info.map_err(|error| url::reason(&error.to_string()).to_owned())?;
        let info = info.set_redis_settings(settings());
        url::checked(info).map_err(|error| error.to_string())
    };
    hosts.map(one).collect()
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let bad_port = || format!("a port in it is not a number up to 65535; {}", url::ENCODED);
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
    if let Some(rest) = text.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or_else(bad_port)?;
        return match behind.strip_prefix(':') {
            None if behind.is_empty() => Ok((host.to_owned(), PORT)),
            Some(digits) => Ok((host.to_owned(), port(digits).ok_or_else(bad_port)?)),
            None => Err(bad_port()),
        };
    }
    if url::is_ipv6(text) {
        return Err("an IPv6 address has brackets: write SCHEME://[address]:26379/NAME".into());
    }
    match text.split_once(':') {
        _ if text.is_empty() || text.starts_with(':') => {
            Err("it has a comma without a host: write SCHEME://host:26379,host:26379/NAME".into())
        }
        Some((host, digits)) => Ok((host.to_owned(), port(digits).ok_or_else(bad_port)?)),
        None => Ok((text.to_owned(), PORT)),
    }
}

/// `named`: by a parameter or by the fragment.
fn name_and_database(path: &str, named: Option<String>) -> Result<(String, i64), String> {
    const NO_NAME: &str = "it has no name of a master: write SCHEME://host:26379/NAME";
    let number = |text: &str| match text {
        "" => Some(0),
        text => text.parse().ok().filter(|number| *number >= 0_i64),
    };
    let not_a_number = || {
        "what follows the name is the number of a database: write SCHEME://host:26379/NAME/database"
            .to_owned()
    };
    if let Some(name) = named {
        let database = number(path).ok_or(
            "it has two names of a master: with one as a parameter, the path is the number of the database, or empty",
        )?;
        return match name.is_empty() {
            true => Err(NO_NAME.into()),
            false => Ok((name, database)),
        };
    }
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    let name = decoded(name)?;
    match name.is_empty() {
        true => Err(NO_NAME.into()),
        false => Ok((name, number(database).ok_or_else(not_a_number)?)),
    }
}

fn with_login(info: RedisConnectionInfo, user: &str, password: &str) -> RedisConnectionInfo {
    let info = match user {
        "" => info,
        user => info.set_username(user),
    };
    match password {
        "" => info,
        password => info.set_password(password),
    }
}

/// Without percent-encoding.
fn decoded(text: &str) -> Result<String, String> {
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
    use super::*;

    fn parsed(url: &str) -> NodeAddress {
        parse(url).unwrap().unwrap()
    }

    fn wrong(url: &str) -> String {
        parse(url).unwrap().unwrap_err().to_string()
    }

    #[test]
    fn the_forms_of_other_clients_name_the_same_set() {
        let same = "m of h:1,h2:26379";
        for (url, shown, database) in [
            ("redis+sentinel://h:1,h2/m", same, 0),
            (" redis+sentinel://h:1,h2/m/ ", same, 0),
            ("redis+sentinel://h:1,h2/m/7", same, 7),
            ("valkey+sentinel://u:p@h:1,h2/m/7", same, 7),
            ("redis-sentinel://:p@h:1,h2/m", same, 0),
            ("valkey-sentinel://h:1,h2/m", same, 0),
            ("redis-sentinel://h:1,h2/3?sentinelMasterId=m", same, 3),
            ("redis-sentinel://h:1,h2#m", same, 0),
            ("redis-sentinel://h:1,h2/2#m", same, 2),
            (
                "redis-sentinel://h:1?sentinelServiceName=m&node=h2:26379",
                same,
                0,
            ),
            ("redis+sentinel://h:1,h2/?master=m", same, 0),
            ("redis+sentinel://h:1,h2/4?master_name=m", same, 4),
            (
                "redis+sentinel://[::1],[::2]:7/m",
                "m of [::1]:26379,[::2]:7",
                0,
            ),
            ("redis+sentinel://h/a%20b", "a b of h:26379", 0),
        ] {
            let address = parsed(url);
            assert_eq!(address.to_string(), shown, "{url}");
            assert_eq!(format!("{address:?}"), shown);
            assert_eq!(address.info().redis_settings().db(), database, "{url}");
            assert!(!address.is_over_tls() && address.connection_info().is_none());
        }
        assert!(parse("redis://h").is_none());
        assert!(parse("redis+cluster+sentinel://h/m").is_none());
    }

    #[test]
    fn the_servers_and_the_sentinels_have_users_of_their_own() {
        let login = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
            text(settings.username()) + "/" + &text(settings.password())
        };
        for (url, servers, sentinels) in [
            ("redis+sentinel://h/m", "-/-", "-/-"),
            ("redis+sentinel://u:p%40%2F@h/m", "u/p@/", "-/-"),
            (
                "redis+sentinel://:p@h/m?sentinel_password=q%23",
                "-/p",
                "-/q#",
            ),
            (
                "redis+sentinel://h/m?sentinel_username=v&sentinel_password=q",
                "-/-",
                "v/q",
            ),
            (
                "redis+sentinel://h/m?sentinelUsername=v&sentinelPassword=q",
                "-/-",
                "v/q",
            ),
        ] {
            let address = parsed(url);
            assert_eq!(login(address.info()), servers, "{url}");
            let set = address.set().unwrap();
            assert_eq!(login(&set.sentinels[0]), sentinels, "{url}");
            assert_eq!(
                address.has_password(),
                servers != "-/-" || sentinels != "-/-"
            );
        }
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn tls_is_for_servers_and_sentinels_alike() {
        for (url, unchecked) in [
            ("rediss+sentinel://h,h2/m", false),
            ("valkeys-sentinel://h,h2/m#insecure", true),
        ] {
            let address = parsed(url);
            assert!(address.is_over_tls());
            let sentinels = &address.set().unwrap().sentinels;
            for info in sentinels.iter().chain([address.info()]) {
                let ConnectionAddr::TcpTls { insecure, .. } = info.addr() else {
                    panic!("{url}");
                };
                assert_eq!(*insecure, unchecked);
            }
        }
        assert!(wrong("redis+sentinel://h/m#insecure").contains("rediss+sentinel://"));
    }

    #[test]
    fn each_wrong_form_is_named_with_the_right_one() {
        let no_name = "it has no name of a master: write redis+sentinel://host:26379/NAME";
        let many = vec!["h"; 65].join(",");
        let long = "m".repeat(70 * 1024);
        for (url, expected) in [
            ("redis+sentinel://h", no_name),
            ("redis+sentinel://h/", no_name),
            ("redis+sentinel://h/3?master=", no_name),
            ("redis+sentinel:///m", "it has no host"),
            ("redis+sentinel://", "it has no host"),
            ("redis+sentinel://u:hunter2@/m", "it has no host"),
            (
                "redis+sentinel://h/m/x",
                "write redis+sentinel://host:26379/NAME/database",
            ),
            ("redis+sentinel://h/m/1/2", "NAME/database"),
            ("redis+sentinel://h/m/-1", "NAME/database"),
            ("redis+sentinel://h/m?sentinelMasterId=n", "two names"),
            ("redis+sentinel://h?master=n#m", "two names"),
            (
                "redis+sentinel://h/m?sentinel_pasword=hunter2",
                "its parameter sentinel_pasword is not known: sentinel_username and",
            ),
            (
                "redis+sentinel://h/m?hunter2",
                "a parameter that is not known",
            ),
            ("redis+sentinel://h/m?hunter2=hunter2", "a parameter that"),
            (
                "redis+sentinel://u:hunter2@h1,u:hunter2@h2/m",
                "write redis+sentinel://user:password@host,host/NAME",
            ),
            ("redis+sentinel://u:hun@ter2@h/m", "%40 for @"),
            ("redis+sentinel://u:hun/ter2@h/m", "%2F for /"),
            ("redis+sentinel://u:hun#ter2@h/m", "%23 for #"),
            ("redis+sentinel://u:hunter2%@h/m", "%25 for %"),
            ("redis+sentinel://h,,h2/m", "a comma without a host"),
            ("redis+sentinel://h,/m", "a comma without a host"),
            ("redis+sentinel://h:99999/m", "not a number up to 65535"),
            ("redis+sentinel://u:hunter2/m", "not a number up to 65535"),
            ("redis+sentinel://[::1/m", "not a number up to 65535"),
            ("redis+sentinel://::1/m", "an IPv6 address has brackets"),
            ("redis+sentinel://h1 h2/m", "a semicolon or a space"),
            ("redis+sentinel://h=hunter2/m", "no host's name has"),
            (
                "redis+sentinel://h/m,redis+sentinel://h2/m",
                "give each node as an item of its own",
            ),
            ("redis+sentinel://MANY/m", "65 sentinels: at most 64"),
            ("redis+sentinel://h/LONG", "bytes long: at most 16384"),
        ] {
            let url = url.replace("MANY", &many).replace("LONG", &long);
            let text = wrong(&url);
            let start: String = url.chars().take(80).collect();
            assert!(text.contains(expected), "{start}: {text}");
            assert!(text.len() < 300 && !text.contains("SCHEME"), "{text}");
            for secret in ["hun", "ter2"] {
                assert!(!text.contains(secret), "{start}: {text}");
            }
        }
    }

    #[test]
    fn the_same_set_is_known_in_another_order() {
        let same = |one: &str, two: &str| parsed(one).is_same(&parsed(two));
        let one = "redis+sentinel://h,h2:2/m";
        assert!(same(one, "redis-sentinel://u:p@h2:2,h:26379/m"));
        assert!(!same(one, "redis+sentinel://h,h2:2/n"));
        assert!(!same(one, "redis+sentinel://h,h3:2/m"));
        let server = NodeAddress::server(url::parse("redis://h:26379").unwrap());
        assert!(!server.is_same(&parsed("redis+sentinel://h/m")));
    }
}
