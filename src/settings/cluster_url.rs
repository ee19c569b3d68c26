//! The URL of a Redis Cluster: `redis+cluster://[user:password@]host[:6379][,host…][/database]`. No text here, nor in
//! `url`, repeats anything that could contain a password.

use crate::settings::node_address::NodeAddress;
use crate::settings::url;
use crate::settings::url_parts::{Scheme, UrlParts, database};
use crate::values::config_error::ConfigError;

const SCHEME: Scheme = Scheme {
    word: "cluster",
    hosts: "hosts",
    port: 6379,
    path: ("", ""),
};

/// The cluster that a URL names; `None` if the scheme is another.
///
/// # Errors
///
/// The reason, and the right form.
pub(crate) fn parse(url: &str) -> Option<Result<NodeAddress, ConfigError>> {
    let parts = UrlParts::of(url, &SCHEME)?;
    let cluster = parts.and_then(|parts| cluster(&parts));
    Some(cluster.map_err(ConfigError::new))
}

fn cluster(parts: &UrlParts<'_>) -> Result<NodeAddress, String> {
    let known = "node=host:port is";
    let more = parts.parameters(|key, _| Err(parts.unknown(key, known)))?;
    if !parts.fragment.is_empty() {
        let text = parts.in_fragment(known);
        return Err(text.unwrap_or_else(|| url::ENCODED.into()));
    }
    let login = parts.login()?;
    let seeds = parts.hosts(&more, &login)?;
    // Most servers have only database 0 in a cluster, and refuse others themselves.
    let Some(database) = database(parts.path) else {
        let right = parts.right_form();
        return Err(format!(
            "what follows the hosts is the number of a database: write {right}/0"
        ));
    };
    let Some(first) = seeds.first() else {
        return Err(parts.no_host());
    };
    let info = first.clone().set_redis_settings(login.set_db(database));
    Ok(NodeAddress::of_cluster(info, seeds))
}

#[cfg(test)]
mod tests {
    use redis::ConnectionInfo;

    use super::*;
    use crate::settings::into_node::IntoNode;
    use crate::settings::url::tests::wrong_forms;

    fn parsed(url: &str) -> NodeAddress {
        parse(url).unwrap().unwrap()
    }

    fn wrong(url: &str) -> String {
        parse(url).unwrap().unwrap_err().to_string()
    }

    #[test]
    fn the_forms_of_other_clients_name_the_same_cluster() {
        let same = "cluster of h:1,h2:6379";
        for (url, shown, database) in [
            ("redis+cluster://h:1,h2", same, 0),
            (" redis+cluster://h:1,h2/ ", same, 0),
            ("redis+cluster://h:1,h2/0", same, 0),
            ("redis+cluster://u:p@h:1,h2/1", same, 1),
            ("valkey+cluster://:p@h:1,h2", same, 0),
            ("redis-cluster://h:1,h2", same, 0),
            ("valkey-cluster://h:1,h2:6379", same, 0),
            ("redis-cluster://h:1?node=h2:6379", same, 0),
            ("redis+cluster://h:1/2?node=h2", same, 2),
            (
                "redis+cluster://[::1],[::2]:7",
                "cluster of [::1]:6379,[::2]:7",
                0,
            ),
            ("redis+cluster://10.0.0.1", "cluster of 10.0.0.1:6379", 0),
        ] {
            let address = parsed(url);
            assert_eq!(address.to_string(), shown, "{url}");
            assert_eq!(format!("{address:?}"), shown);
            assert_eq!(url.into_node().unwrap().to_string(), shown);
            assert_eq!(address.info().redis_settings().db(), database, "{url}");
            assert!(!address.is_over_tls());
            assert!(address.set().is_none());
            let seeds = address.cluster().unwrap();
            assert_eq!(seeds[0].addr(), address.info().addr());
            // No database is selected to read the cluster's map.
            assert!(seeds.iter().all(|seed| seed.redis_settings().db() == 0));
        }
        for url in [
            "redis://h",
            "redis+sentinel://h/m",
            "redis+cluster+sentinel://h/m",
            "unix+cluster://h",
            "cluster://h",
        ] {
            assert!(parse(url).is_none(), "{url}");
        }
    }

    #[test]
    fn every_seed_has_the_login() {
        let login = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
            text(settings.username()) + "/" + &text(settings.password())
        };
        for (url, expected) in [
            ("redis+cluster://h,h2", "-/-"),
            ("redis+cluster://u@h,h2", "u/-"),
            ("redis+cluster://:p%23@h,h2/1", "-/p#"),
            ("redis+cluster://u%2C:p%40%2F@h?node=h2", "u,/p@/"),
        ] {
            let address = parsed(url);
            let seeds = address.cluster().unwrap();
            assert_eq!(seeds.len(), 2);
            for info in seeds.iter().chain([address.info()]) {
                assert_eq!(login(info), expected, "{url}");
            }
            assert_eq!(address.has_password(), !expected.ends_with("/-"));
        }
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn tls_is_for_all_seeds() {
        for (url, unchecked) in [
            ("rediss+cluster://h,h2", false),
            ("valkeys+cluster://h?node=h2:1", false),
            ("rediss-cluster://h,h2/0", false),
            ("valkeys-cluster://h,h2#insecure", true),
        ] {
            let address = parsed(url);
            assert!(address.is_over_tls());
            let seeds = address.cluster().unwrap();
            assert_eq!(seeds.len(), 2);
            for info in seeds.iter().chain([address.info()]) {
                let redis::ConnectionAddr::TcpTls { insecure, .. } = info.addr() else {
                    panic!("{url}");
                };
                assert_eq!(*insecure, unchecked);
            }
        }
        assert!(parsed("rediss+cluster://h").is_same(&parsed("redis+cluster://h")));
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn tls_without_its_feature_names_the_feature() {
        for url in ["rediss+cluster://:hunter2@h", "valkeys-cluster://h,h2"] {
            let text = wrong(url);
            assert!(text.contains("features = [\"tls\"]"), "{text}");
        }
    }

    #[test]
    fn each_wrong_form_is_named_with_the_right_one() {
        let number = "the number of a database: write redis+cluster://host:6379/0";
        let comma = "a comma without a host: write redis+cluster://host:6379,host:6379";
        let port = "not a number up to 65535";
        let forms = [
            (
                "redis+cluster://",
                "it has no host: write redis+cluster://host:6379",
            ),
            ("valkey-cluster:///0", "write valkey-cluster://host:6379"),
            ("redis+cluster://?node=h", "it has no host"),
            ("redis+cluster://h/x", number),
            ("redis+cluster://h/-1", number),
            ("redis+cluster://h/0/1", number),
            ("redis+cluster://u:1/hunter2", number),
            ("redis+cluster://h,:6379", comma),
            ("redis+cluster://h?node=h2:x", port),
            ("redis+cluster://u:hunter2/0", port),
            (
                "redis+cluster://::1",
                "brackets: write redis+cluster://[address]:6379",
            ),
            ("redis+cluster://h?node=h2,h3", "a semicolon or a space"),
            (
                "redis+cluster://u:hunter2@h1,u:hunter2@h2",
                "write redis+cluster://user:password@host,host",
            ),
            ("redis+cluster://h?node", "6379?node=host:6379"),
            ("redis+cluster://h?hunter2", "not known: node=host:port is"),
            (
                "redis+cluster://h?pass=hunter2",
                "its parameter pass is not known: write redis+cluster://user:password@host:6379",
            ),
            (
                "redis+cluster://h/?db=3",
                "its parameter db is not known: write redis+cluster://host:6379/3",
            ),
            ("redis+cluster://h#db=3", "the db behind its # is not known"),
            (
                "redis+cluster://h?role=x",
                "parameter role is not known: node=",
            ),
            ("redis+cluster://u:hun?ter2@h", "%3F for ?"),
            ("redis+cluster://h#hunter2", "%23 for #"),
            ("redis+cluster://MANY", "65 hosts: at most 64"),
            ("redis+cluster://h?node=MANY", "a semicolon or a space"),
        ];
        wrong_forms::are_named(wrong, &forms);
        wrong_forms::of_several_hosts(wrong, "redis+cluster", "");
        let nodes = vec!["node=h"; 64].join("&");
        assert!(wrong(&format!("redis+cluster://h?{nodes}")).contains("65 hosts"));
        let most = vec!["h"; 64].join(",");
        assert_eq!(
            parsed(&format!("redis+cluster://{most}"))
                .cluster()
                .map(<[_]>::len),
            Some(64)
        );
        let unchecked = parse("redis+cluster://h#insecure").unwrap();
        let text = unchecked.unwrap_err().to_string();
        assert!(text.ends_with("write rediss+cluster://host:6379"), "{text}");
    }

    #[test]
    fn the_same_cluster_is_recognized_in_another_order() {
        let same = |one: &str, two: &str| parsed(one).is_same(&parsed(two));
        let one = "redis+cluster://h,h2:2";
        for two in [
            one,
            "redis-cluster://u:p@h2:2,h:6379/1",
            "valkey+cluster://h2:2?node=h",
            "redis+cluster://h,h2:2,h",
        ] {
            assert!(same(one, two) && same(two, one), "{two}");
        }
        for two in ["redis+cluster://h,h3:2", "redis+cluster://h,h2:3"] {
            assert!(!same(one, two) && !same(two, one), "{two}");
        }
        let cluster = parsed("redis+cluster://h");
        for other in ["redis://h:6379", "redis+sentinel://h:6379/m"] {
            let other = other.into_node().unwrap();
            assert!(!other.is_same(&cluster) && !cluster.is_same(&other));
        }
    }
}
