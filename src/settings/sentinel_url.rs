//! The URL of a set that sentinels watch: `redis+sentinel://[user:password@]host[:26379][,host…]/master[/database]`,
//! and the forms of other clients. No text here, nor in `url`, repeats anything that could contain a password.

use crate::settings::node_address::{NodeAddress, Set};
use crate::settings::url;
use crate::settings::url_parameters;
use crate::settings::url_parts::{Scheme, UrlParts, database, decoded, login};
use crate::values::config_error::ConfigError;

const SCHEME: Scheme = Scheme {
    word: "sentinel",
    hosts: "sentinels",
    port: 26379,
    path: ("/NAME", ", with the name of the master"),
};
/// The parameters that name the master; then the path is the database.
const NAMES: [&str; 4] = [
    "sentinelMasterId",
    "sentinelServiceName",
    "master",
    "master_name",
];
const USERS: [&str; 2] = ["sentinel_username", "sentinelUsername"];
const PASSWORDS: [&str; 2] = ["sentinel_password", "sentinelPassword"];
const KNOWN: &str = "sentinel_username and sentinel_password are";

/// The set that a URL names; `None` if the scheme is another.
///
/// # Errors
///
/// The reason, and the right form.
pub(crate) fn parse(url: &str) -> Option<Result<NodeAddress, ConfigError>> {
    let parts = UrlParts::of(url, &SCHEME)?;
    let set = parts.and_then(|parts| set(&parts));
    Some(set.map_err(ConfigError::new))
}

fn set(parts: &UrlParts<'_>) -> Result<NodeAddress, String> {
    let parameters = Parameters::of(parts)?;
    let settings = login(&parameters.user, &parameters.password);
    let sentinels = parts.hosts(&parameters.hosts, &settings)?;
    let (name, database) = name_and_database(parts, parameters.name)?;
    // An unencoded `/` of a password has ended the host, and its `@` was encoded.
    if name.contains(['@', '＠']) {
        return Err(url::ENCODED.into());
    }
    let servers = parts.login()?.set_db(database);
    let Some(first) = sentinels.first() else {
        return Err(parts.no_host());
    };
    let info = first.clone().set_redis_settings(servers);
    Ok(NodeAddress::of_set(info, Set { name, sentinels }))
}

#[derive(Default)]
struct Parameters {
    name: Option<String>,
    user: String,
    password: String,
    hosts: Vec<String>,
}

impl Parameters {
    fn of(parts: &UrlParts<'_>) -> Result<Parameters, String> {
        let mut found = Parameters::default();
        found.hosts = parts.parameters(|key, value| {
            match key {
                _ if NAMES.contains(&key) => found.names(parts, value)?,
                _ if USERS.contains(&key) => return once(&mut found.user, key, value),
                _ if PASSWORDS.contains(&key) => return once(&mut found.password, key, value),
                _ => return Err(parts.unknown(key, KNOWN)),
            }
            Ok(())
        })?;
        if !parts.fragment.is_empty() {
            // The fragment may be the rest of a password.
            if !found.password.is_empty() {
                return Err(url::ENCODED.into());
            }
            if let Some(text) = parts.in_fragment(KNOWN) {
                return Err(text);
            }
            found.names(parts, decoded(parts.fragment)?)?;
        }
        Ok(found)
    }

    fn names(&mut self, parts: &UrlParts<'_>, name: String) -> Result<(), String> {
        match self.name.replace(name) {
            None => Ok(()),
            Some(_) => Err(format!(
                "it has two names of a master: write {} for each, as items of their own",
                parts.right_form()
            )),
        }
    }
}

/// Refuses two values for one thing.
fn once(found: &mut String, key: &str, value: String) -> Result<(), String> {
    match std::mem::replace(found, value).is_empty() {
        true => Ok(()),
        false => Err(url_parameters::twice(key)),
    }
}

/// The master's name and the database. `named`: the name from a parameter or from the fragment.
fn name_and_database(parts: &UrlParts<'_>, named: Option<String>) -> Result<(String, i64), String> {
    let right = parts.right_form();
    let no_name = || format!("it has no name of a master: write {right}");
    if let Some(name) = named {
        let database = database(parts.path).ok_or(
            "it has two names of a master: with one as a parameter, the path is the number of the database, or empty",
        )?;
        return match name.is_empty() {
            true => Err(no_name()),
            false => Ok((name, database)),
        };
    }
    let (name, number) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let name = decoded(name)?;
    let not_a_number =
        || format!("what follows the name is the number of a database: write {right}/database");
    match name.is_empty() {
        true => Err(no_name()),
        false => Ok((name, database(number).ok_or_else(not_a_number)?)),
    }
}

#[cfg(test)]
mod tests {
    use redis::ConnectionInfo;

    use super::*;
    use crate::settings::url::tests::wrong_forms;

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
            assert!(!address.is_over_tls());
        }
        assert!(parse("redis://h").is_none());
        assert!(parse("redis+cluster://h").is_none());
        assert!(parse("redis+cluster+sentinel://h/m").is_none());
    }

    #[test]
    fn the_servers_and_the_sentinels_have_separate_users() {
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
                let redis::ConnectionAddr::TcpTls { insecure, .. } = info.addr() else {
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
        let forms = [
            ("redis+sentinel://h", no_name),
            ("redis+sentinel://h/", no_name),
            ("redis+sentinel://h/3?master=", no_name),
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
                "redis+sentinel://h/m?db=3",
                "its parameter db is not known: write redis+sentinel://host:26379/NAME/3",
            ),
            (
                "redis+sentinel://h/m?password=hunter2",
                "write redis+sentinel://user:password@host:26379/NAME",
            ),
            (
                "redis+sentinel://h#db=3",
                "the db behind its # is not known",
            ),
            ("redis+sentinel://h/3#m?db=3", "behind its # is not known"),
            (
                "redis+sentinel://h/m?sentinel_password=a&sentinelPassword=b",
                "the parameter sentinelPassword twice",
            ),
            ("redis+sentinel://hun/ter2%40h", "%40 for @"),
            ("redis+sentinel://h/m?node=", "/NAME?node=host:26379"),
            ("redis+sentinel://MANY/m", "65 sentinels: at most 64"),
            ("redis+sentinel://h/LONG", "bytes long: at most 16384"),
        ];
        wrong_forms::are_named(wrong, &forms);
        wrong_forms::of_several_hosts(wrong, "redis+sentinel", "/m");
    }

    #[test]
    fn the_same_set_is_recognized_in_another_order() {
        let same = |one: &str, two: &str| parsed(one).is_same(&parsed(two));
        let one = "redis+sentinel://h,h2:2/m";
        assert!(same(one, "redis-sentinel://u:p@h2:2,h:26379/m"));
        assert!(!same(one, "redis+sentinel://h,h2:2/n"));
        assert!(!same(one, "redis+sentinel://h,h3:2/m"));
        let server = NodeAddress::server(url::parse("redis://h:26379").unwrap());
        assert!(!server.is_same(&parsed("redis+sentinel://h/m")));
    }
}
