pub(in crate::settings) mod wrong_forms;

use super::*;

fn text(url: &str) -> String {
    parse(url).unwrap_err().to_string()
}

#[test]
fn each_wrong_form_is_named_with_the_right_one() {
    let several = "give each node as an item of its own";
    let forms = [
        ("", "it is empty: write redis://host:port"),
        ("127.0.0.1:6379", "no scheme: write redis://127.0.0.1:6379"),
        ("localhost:6379", "no scheme: write redis://localhost:6379"),
        ("nonsense", "no scheme: write redis://host:port"),
        ("127.0.0.1", "it has no scheme: write redis://127.0.0.1"),
        ("u:p@127.0.0.1:1", "write redis://user:password@host:port"),
        (
            "sentinel://host/name",
            "write redis+sentinel://host:26379/NAME",
        ),
        (
            "cluster://host",
            "a Redis Cluster is named so: write redis+cluster://host:6379,host:6379",
        ),
        ("unix+cluster://", "write redis+cluster://host:6379"),
        ("unix+cluster://h:1/0", "write redis+cluster://host:6379"),
        ("cluster://a,b", "is redis+cluster://host,host"),
        ("redis+cluster+sentinel://", "or redis+cluster://host:6379"),
        (
            "valkeys+cluster+sentinel://h/m",
            "write redis+sentinel://host:26379/NAME",
        ),
        ("[::1]:6379", "brackets: write redis://[::1]:6379"),
        ("::1", "brackets: write redis://[::1]"),
        ("/run/redis.sock", "no scheme: write unix:///path/to/socket"),
        ("redis:host", "write redis://host:port"),
        ("unix:", "write unix:///path/to/socket"),
        ("unix://relative", "write unix:///path/to/socket"),
        (
            "http://host:6379",
            "the scheme must be redis, rediss (TLS) or unix: write redis://",
        ),
        ("https://host:6379", "write rediss://"),
        ("redis+tls://host:6379", "write rediss://"),
        ("redis+ssl://host:6379", "write rediss://"),
        ("redis://a,redis://b", several),
        ("redis://a, redis://b", several),
        ("redis://a redis://b", several),
        ("redis://a;redis://b", several),
        ("redis://a,b:6379", several),
        ("redis://a,b", several),
        (
            "redis://a,b",
            "redis+sentinel://host,host/NAME, and a Redis Cluster is redis+cluster://host,host",
        ),
        ("redis-cli -h a", several),
        ("a:1,password=x", "redis://user:password@host:port"),
        (
            "redis://user%3Ax%40host",
            "no host's name has: write redis://user:password@host:port",
        ),
        ("redis://bücher.example", "as punycode (xn--…)"),
        ("unix:///s,password=x", "write unix:///path?user=…&pass=…"),
        ("a:1,b:2", several),
        ("a:1 b:2", several),
        (
            "redis://::1:6379",
            "an IPv6 address has brackets: write redis://[::1]:6379",
        ),
        (
            "redis://fe80::1",
            "an IPv6 address has brackets: write redis://[fe80::1]",
        ),
        (
            "redis://2001:db8::2:7000/1",
            "write redis://[2001:db8::2]:7000",
        ),
        (
            "redis://1:2:3:4:5:6:7:8:9",
            "write redis://[1:2:3:4:5:6:7:8]:9",
        ),
        ("redis://", "it has no host: write redis://host:port"),
        ("redis://:6379", "it has no host"),
        ("redis://host:99999", "its port is not a number up to 65535"),
        ("redis://host:port", "its port is not a number up to 65535"),
        (
            "redis://:hunter2@host:0",
            "ports are numbers from 1 to 65535",
        ),
        ("redis://host/-1", "databases are numbers from 0 on"),
        ("unix:///s?db=-1", "databases are numbers from 0 on"),
        (
            "redis://host/x",
            "Invalid database number: write redis://host:port/database",
        ),
        ("redis://host?protocol=9", "Invalid protocol version"),
        ("redis://host?protocol=3", "locks speak RESP2: leave it out"),
        ("redis://host?protocol=resp3", "locks speak RESP2"),
        ("unix:///s?protocol=3", "locks speak RESP2"),
        ("redis://0.0.0.0", "wildcard address"),
        (
            "redis://h/?db=3",
            "its parameter db is not known: write redis://host:port/3 for the database 3",
        ),
        ("REDIS://h?db=3", "write REDIS://host:port/3"),
        ("redis://db:1/2?db=3", "its parameter db is not known"),
        ("redis://u:p@h?database=3", "its parameter database is"),
        ("redis://h#db=3", "the db behind its # is not known: write"),
        ("redis://h/3#4", "%23 for #"),
        (
            "redis://h/?timeout=5",
            "options (node_timeout, connect_timeout)",
        ),
        ("redis://h/?role=master", "its parameter role is not known"),
        ("redis://h?protocol=3&db=3", "its parameter db is not known"),
        ("redis://h?protocol=2&protocol=3", "protocol twice"),
        (
            "redis://h?ssl_cert_reqs=none",
            "the scheme is rediss, and #insecure",
        ),
        (
            "redis://h/#insecure",
            "#insecure is for TLS: write rediss://",
        ),
        (
            "valkey://h?password=hunter2",
            "write valkey://user:password@",
        ),
        ("unix:///s?database=3", "write unix:///path?db=3"),
        ("unix:///s?db=1&db=3", "the parameter db twice"),
        ("unix:///s?password=x", "write unix:///path?user=…&pass=…"),
        (
            "redis+unix:///s?username=x",
            "write unix:///path?user=…&pass=…",
        ),
        ("unix:///s#db=3", "the db behind its # is not known"),
        ("unix:///s#insecure", "#insecure is for TLS"),
        ("unix://u:p@localhost/s", "before its path"),
        ("unix://localhost:3/s", "before its path"),
    ];
    wrong_forms::are_named(text, &forms);
    for password in ["a#b", "a/b", "a?b", "12#3", "12/3", "12?3"] {
        for url in ["redis://:{}@host", "redis://u:{}@host:1/0"] {
            let text = text(&url.replace("{}", password));
            assert!(text.contains("%23 for #, %25 for %, %2F for /"), "{text}");
        }
    }
    let encoded = parse("redis://:a%23b%2Fc%3Fd%25e%40f@host").unwrap();
    assert_eq!(encoded.redis_settings().password(), Some("a#b/c?d%e@f"));
    for url in [
        "redis://a",
        "redis://[::1]:1",
        "redis://xn--bcher-kva.example",
        "redis://a_b.c-d.:1",
        "unix:///a,b",
        " redis://a:1/2 ",
        "redis://a/?",
        "redis://a/#",
        "redis://a?protocol=resp2",
        "redis://a/3/",
        "unix:///a?db=3&user=u&pass=p&protocol=2",
        "unix://localhost/a?db=3",
        "UNIX:///a?db=3",
    ] {
        parse(url).unwrap();
    }
}

#[test]
fn a_plus_in_the_parameters_of_a_socket_is_a_plus() {
    for (url, password) in [
        ("unix:///a+b?user=u&pass=a+b%2B+", "a+b++"),
        ("redis://u:a+b@h", "a+b"),
    ] {
        let info = parse(url).unwrap();
        assert_eq!(info.redis_settings().password(), Some(password), "{url}");
    }
    let parsed = parse("unix:///a+b?user=u&pass=+").unwrap();
    let ConnectionAddr::Unix(path) = parsed.addr() else {
        panic!("{:?}", parsed.addr());
    };
    assert_eq!(path, std::path::Path::new("/a+b"));
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn tls_without_its_feature_names_the_feature() {
    for url in ["rediss://host", "valkeys://:hunter2@host:1"] {
        let text = text(url);
        assert!(text.contains("features = [\"tls\"]"), "{text}");
    }
}

#[test]
fn what_may_be_a_password_is_no_address() {
    let tcp = |host: &str| odd(&ConnectionAddr::Tcp(host.into(), 6379));
    for host in [
        "localhost",
        "redis_1.my-net.example.",
        "xn--bcher-kva.example",
        "10.0.0.1",
        "::1",
        "fe80::1%eth0.100",
        "::ffff:10.0.0.1",
    ] {
        assert_eq!(tcp(host), None, "{host}");
    }
    for host in [
        "",
        "user:hunter2@host",
        "user%3Ahunter2%40host",
        "user：hunter2＠host",
        "password=hunter2",
        "host:hunter2",
        "host%hunter2",
        "::1%",
        "::1%:hunter2@host",
        "[::1]",
        "b%C3%BCcher.example",
        "bücher.example",
        "-a",
        "host\nhunter2",
        "host\u{3000}hunter2",
    ] {
        assert_eq!(tcp(host), Some(NO_HOST), "{host}");
    }
    for host in ["a,b", "a;password=hunter2", "a hunter2"] {
        assert_eq!(tcp(host), Some(SEVERAL), "{host}");
    }
    let tls = ConnectionAddr::TcpTls {
        host: "user%3Ahunter2%40host".into(),
        port: 1,
        insecure: false,
        tls_params: None,
    };
    assert_eq!(odd(&tls), Some(NO_HOST));
    let unix = |path: &str| odd(&ConnectionAddr::Unix(path.into()));
    for path in ["/run/redis.sock", "/a,b", "/a=b/c d", "/run/redis@a/ü"] {
        assert_eq!(unix(path), None, "{path}");
    }
    for path in ["/redis://user:hunter2@h", "redis+sentinel://h/a"] {
        assert_eq!(unix(path), Some(ANOTHER), "{path}");
    }
    for path in ["/s,password=hunter2", "/s?pass=hunter2", "/s password = x"] {
        assert_eq!(unix(path), Some(PARAMETERS), "{path}");
    }
}

/// The text shown for an accepted URL or for a refused one. (The host follows an '@'.)
fn seen(url: &str) -> String {
    match parse(url) {
        Ok(_) if url.contains(['@', '?', '#']) => String::new(),
        Ok(info) => crate::errors::text::address(info.addr()),
        Err(error) => error.to_string(),
    }
}

/// Passwords in any place, with any characters.
#[test]
fn no_password_is_shown_wherever_it_is_written() {
    let passwords = [
        "hunter2", "hun@ter2", "hun/ter2", "hun:ter2", "hun?ter2", "hun#ter2",
    ];
    let more = [
        "hun,ter2",
        "hun ter2",
        "hun;ter2",
        "hun=ter2",
        "hun&ter2",
        "hun\nter2",
    ];
    let odd = [
        "hun%ter2",
        "hun\"ter2",
        "hun\\ter2",
        "[hunter2]",
        "hun://ter2",
        "hünter2",
        "@hunter2@",
    ];
    let places = [
        "redis://:{}@host:6379",
        "redis://user:{}@host:99999",
        "redis://{}@host:99999",
        "redis://user:{}@",
        "redis://user:{}@host/x",
        "http://user:{}@host:6379",
        "user:{}@host:6379",
        ":{}@host",
        "{}@host",
        "redis:user:{}@host",
        "redis:/user:{}@host",
        "redis:://user:{}@host",
        "redis//user:{}@host",
        "redis://host,redis://user:{}@host",
        "redis://user:{}@host,redis://host",
        "redis://user:{}@a redis://user:{}@b",
        "redis://user:{}@::1:6379",
        "unix:///s?pass={}",
        "unix:///s?user=a&pass={}&db=x",
        "unix://s?db={}",
        "redis://host:99999?password={}",
        "redis://host:99999/0?db=1&token={}#x",
        "redis://host:99999#{}",
        // Key and value, or the arguments of a program.
        "name.redis.cache.windows.net:6380,password={}=,ssl=True",
        "host:6379;password={}",
        "host:6379 {}",
        "host:6379, {}",
        "password={}",
        "redis-cli -h host -a {}",
        "-a{}",
        "redis://name,password={}",
        "redis://host:6379 {}",
        "redis://host password={} ssl",
        "unix:///run/x,password={}",
        "unix:///run/x password={}",
        "unix:///run/x%3Fpass={}",
        "/run/x password={}",
        "/run/x:{}",
    ];
    let all = passwords.iter().chain(&more).chain(&odd);
    for password in all {
        for url in places.map(|place| place.replace("{}", password)) {
            // Percent-encoded as a whole, and full width.
            let encoded = url.replace(':', "%3A").replace('@', "%40");
            for url in [
                encoded.replace('/', "%2F").replace('?', "%3F"),
                encoded.to_lowercase().replacen("%3a//", "://", 1),
                url.replace('@', "%40"),
                url.replace(':', "：").replace('@', "＠"),
                url.replacen(':', "：", 2).replacen("：", ":", 1),
                url,
            ] {
                let seen = seen(&url);
                for part in ["hun", "ter2", "hün"] {
                    assert!(!seen.contains(part), "{url}: {seen}");
                }
            }
        }
    }
    // The '@' was forgotten.
    for url in [
        "redis://:hunter2",
        "redis://user:hunter2",
        "redis://user:hunter2/0",
        "redis://user:123/hunter2",
        "redis://user:hunter2host:6379",
        "redis://:123456",
        "redis://:12345",
        "redis://user:123456",
        "user:hunter2",
        "redis://a:1,user:hunter2",
        "redis://user:12?hunter2%40host",
    ] {
        let seen = seen(url);
        assert!(
            !seen.contains("hunter2") && !seen.contains("12345"),
            "{seen}"
        );
    }
}
