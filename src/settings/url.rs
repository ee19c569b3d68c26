//! The URL of a node, and what is wrong with it. A text that is not a URL may have a password anywhere, so no text here
//! repeats any of it except IP addresses.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::errors::text::NO_TLS;
use crate::settings::url_parameters::{self, Right};
use crate::values::config_error::ConfigError;

const SCHEMES: [&str; 7] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
];
const SEVERAL: &str = "it has a comma, a semicolon or a space in it: give each node as an item of its own, and a \
    password before an @ (redis://user:password@host:port), with %2C, %3B or %20 for those in it; sentinels are \
    redis+sentinel://host,host/NAME, and a Redis Cluster is redis+cluster://host,host";
const NO_HOST: &str = "its host has characters that no host's name has: write redis://user:password@host:port, with : \
    and @ between them as they are, and an international name as punycode (xn--…)";
const PARAMETERS: &str = "its path has a parameter in it: write unix:///path?user=…&pass=…&db=…";
const ANOTHER: &str = "its path has another URL in it: give each node as an item of its own";
const NO_PORT: &str = "its port is 0: ports are numbers from 1 to 65535";
const RESP3: &str = "its parameter protocol asks for RESP3, and locks speak RESP2: leave it out";
const NO_DATABASE: &str = "its database is negative: databases are numbers from 0 on";
const UNIX: &str = "unix:///path?user=…&pass=…&db=…";
pub(crate) const ENCODED: &str = "a password must be percent-encoded: write %23 for #, %25 for %, %2F for /, %3A for :, %3F for ? \
    and %40 for @ in it";

/// The node that a URL names.
///
/// # Errors
///
/// The reason, and the right form.
pub(crate) fn parse(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let url = &*with_plus(url);
    match url.into_connection_info() {
        Err(error) => Err(ConfigError::new(right_form(url, &error.to_string()))),
        Ok(_) if is_torn(url) => Err(ConfigError::new(ENCODED)),
        Ok(info) => match not_obeyed(url) {
            Some(reason) => Err(ConfigError::new(reason)),
            None => checked(info),
        },
    }
}

/// The URL of a socket with each + in its parameters encoded, which the redis crate would take for a space.
fn with_plus(url: &str) -> Cow<'_, str> {
    match url.split_once('?') {
        Some((path, query)) if is_path(url) && query.contains('+') => {
            format!("{path}?{}", query.replace('+', "%2B")).into()
        }
        _ => url.into(),
    }
}

/// Why a URL is refused from which the redis crate would silently drop a part: another database, say, or a user.
fn not_obeyed(url: &str) -> Option<String> {
    let (scheme, rest) = split_scheme(url.trim());
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = base.split('/').next().unwrap_or_default();
    let is_path = is_path(url);
    if is_path && !scheme.is_empty() && !matches!(authority, "" | "localhost") {
        let text = "something stands before its path, which begins with the third slash: write";
        return Some(format!("{text} {UNIX}"));
    }
    let (known, right): (&[&str], _) = match is_path {
        true => (&["user", "pass", "db", "protocol"], right_of_path()),
        false => (&["protocol"], right_of_server(scheme)),
    };
    if let Some(text) = url_parameters::refused(query, known, base, &right) {
        return Some(text);
    }
    let asks_for_resp3 = |(key, value)| key == "protocol" && matches!(value, "3" | "resp3");
    if url_parameters::pairs(query).any(asks_for_resp3) {
        return Some(RESP3.into());
    }
    let tls = ["rediss://", "valkeys://"].contains(&&*scheme.to_ascii_lowercase());
    match fragment {
        "" => None,
        "insecure" if tls => None,
        "insecure" => Some("#insecure is for TLS: write rediss://host:port/#insecure".into()),
        _ => {
            let known = url_parameters::in_fragment(fragment, &right);
            Some(known.unwrap_or_else(|| ENCODED.into()))
        }
    }
}

fn right_of_server(scheme: &str) -> Right {
    Right {
        database: format!("{scheme}host:port/3 for the database 3"),
        login: format!("{scheme}user:password@host:port"),
        others: format!("write {scheme}user:password@host:port/database"),
    }
}

fn right_of_path() -> Right {
    Right {
        database: "unix:///path?db=3 for the database 3".into(),
        login: "unix:///path?user=…&pass=…".into(),
        others: format!("write {UNIX}"),
    }
}

/// The node, if its address can be one: the redis crate takes nearly anything for a host, such as `a,b`, or a part of a
/// URL with its password. Such a host must not be shown.
pub(crate) fn checked(info: ConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
    match odd(info.addr()) {
        Some(reason) => Err(ConfigError::new(reason)),
        None if info.redis_settings().db() < 0 => Err(ConfigError::new(NO_DATABASE)),
        None => Ok(info),
    }
}

/// Why an address cannot be a node's.
fn odd(address: &ConnectionAddr) -> Option<&'static str> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => match host {
            _ if *port == 0 => Some(NO_PORT),
            _ if host.contains([',', ';', ' ']) => Some(SEVERAL),
            _ => (!is_host(host)).then_some(NO_HOST),
        },
        ConnectionAddr::Unix(path) => {
            let path = path.to_string_lossy();
            if path.contains("://") {
                return Some(ANOTHER);
            }
            let (_, rest) = path.split_once([',', ';', ' ', '?', '&'])?;
            rest.contains('=').then_some(PARAMETERS)
        }
        _ => None,
    }
}

/// Whether the text is a host name, or an address, perhaps with its zone. (The redis crate writes international names
/// in a form that no name server has, unless they are given as punycode.)
pub(crate) fn is_host(host: &str) -> bool {
    let (address, zone) = host.split_once('%').unwrap_or((host, "none"));
    is_name(host) || is_name(zone) && address.parse::<Ipv6Addr>().is_ok()
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_part)
}

/// Whether an unencoded `/`, `?` or `#` of a password has ended the host before its `@`.
pub(crate) fn is_torn(url: &str) -> bool {
    let (_, rest) = split_scheme(url.trim());
    let (_, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    !is_path(url) && behind.contains('@')
}

// ---- the right form

/// Why the URL is refused, and its right form.
fn right_form(url: &str, error: &str) -> String {
    let base = url.trim();
    let base = base.split(['?', '#']).next().unwrap_or_default();
    let hosts = base.rsplit('@').next().unwrap_or_default();
    let (_, authority) = split_scheme(hosts);
    let authority = authority.split('/').next().unwrap_or_default();
    if base.is_empty() {
        return "it is empty: write redis://host:port".into();
    }
    if let Some(text) = wrapped(base) {
        return text.into();
    }
    if base.matches("://").count() > 1 || hosts.contains(is_separator) {
        return SEVERAL.into();
    }
    let Some(scheme) = scheme(base) else {
        return without_scheme(base, authority);
    };
    if let Some(form) = other_scheme(scheme) {
        return form;
    }
    if matches!(scheme, "rediss" | "valkeys") && !cfg!(feature = "tls-rustls") {
        return NO_TLS.into();
    }
    if is_path(url) {
        return format!("{}: write unix:///path/to/socket", reason(error));
    }
    let (_, port) = authority.rsplit_once(':').unwrap_or_default();
    if is_ipv6(authority) {
        let right = bracketed(scheme, authority);
        return format!("an IPv6 address has brackets: write {right}");
    }
    if is_torn(url) {
        return ENCODED.into();
    }
    if authority.is_empty() || authority.starts_with(':') {
        return format!("it has no host: write {scheme}://host:port");
    }
    if !port.is_empty() && !authority.ends_with(']') && port.parse::<u16>().is_err() {
        return format!("its port is not a number up to 65535; {ENCODED}");
    }
    if let Some(text) = not_obeyed(url) {
        return text;
    }
    format!("{}: write {scheme}://host:port/database", reason(error))
}

/// Why a text is refused that has more around its URL than the URL: as in files of shells, in JSON and in documents.
fn wrapped(base: &str) -> Option<&'static str> {
    let (before, _) = base.split_once("://")?;
    let is_mark = |c: char| "\"'`“”„‘’[]<>(){}".contains(c);
    if before.starts_with(is_mark) {
        return Some("it stands in quotation marks or brackets: leave them out");
    }
    let is_named = before.contains('=') || before.contains(": ");
    let is_alone = !before.contains(['@', ',']);
    (is_named && is_alone).then_some("a name stands before it: give the URL alone")
}

fn other_scheme(scheme: &str) -> Option<String> {
    if SCHEMES.contains(&scheme) {
        return None;
    }
    let has = |word: &str| scheme.split(['+', '-']).any(|part| part == word);
    let sentinels = "redis+sentinel://host:26379/NAME, with the name of the master";
    let cluster = "redis+cluster://host:6379,host:6379";
    Some(match (has("sentinel"), has("cluster")) {
        (true, false) => format!("sentinels are named so: write {sentinels}"),
        (false, true) => format!("a Redis Cluster is named so: write {cluster}"),
        (true, true) => {
            format!("it names sentinels and a cluster: write {sentinels}, or {cluster}")
        }
        (false, false) => {
            let right = match scheme == "https" || has("tls") || has("ssl") {
                true => "rediss",
                false => "redis",
            };
            format!("the scheme must be redis, rediss (TLS) or unix: write {right}://host:port")
        }
    })
}

fn without_scheme(base: &str, authority: &str) -> String {
    match base.split_once(':') {
        Some(("unix" | "redis+unix" | "valkey+unix", _)) => {
            "its path has no // before it: write unix:///path/to/socket".into()
        }
        Some((scheme, _)) if SCHEMES.contains(&scheme) => {
            format!("its host has no // before it: write {scheme}://host:port")
        }
        _ if base.contains('@') || base.contains("%40") => {
            "it has no scheme: write redis://user:password@host:port".into()
        }
        _ if base.starts_with('/') => "it has no scheme: write unix:///path/to/socket".into(),
        _ if is_ipv6(authority) => {
            let right = bracketed("redis", authority);
            format!("it has no scheme, and an IPv6 address has brackets: write {right}")
        }
        _ if is_ipv4(authority) => format!("it has no scheme: write redis://{authority}"),
        _ => "it has no scheme: write redis://host:port".into(),
    }
}

/// The redis crate's text without its error class, and without the value.
pub(crate) fn reason(error: &str) -> &str {
    error.split(" - ").next().unwrap_or(error)
}

// ---- parts

fn is_separator(c: char) -> bool {
    c == ',' || c == ';' || c.is_whitespace()
}

/// The scheme: the text before `://`.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.trim_start().split_once("://")?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (!scheme.is_empty() && scheme.len() <= 24 && scheme.chars().all(is_part)).then_some(scheme)
}

/// The scheme with its `://`, and the rest.
fn split_scheme(url: &str) -> (&str, &str) {
    match (scheme(url), url.find("://")) {
        (Some(_), Some(at)) => url.split_at(at + 3),
        _ => ("", url),
    }
}

fn is_path(url: &str) -> bool {
    let is_unix = |scheme: &str| scheme.to_ascii_lowercase().ends_with("unix");
    scheme(url).is_some_and(is_unix) || url.trim().starts_with("unix:")
}

fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether it is an IPv4 address, with or without a port.
fn is_ipv4(authority: &str) -> bool {
    let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
    (host.parse::<Ipv4Addr>().is_ok() || host == "localhost") && is_port(port)
}

/// Whether it is an IPv6 address, with or without brackets, with or without a port.
pub(crate) fn is_ipv6(authority: &str) -> bool {
    let parses = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    match authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((address, rest)) => parses(address) && rest.strip_prefix(':').is_none_or(is_port),
        None => parses(authority) || with_port(authority).is_some(),
    }
}

/// An IPv6 address without brackets and the port behind it, if the two can be distinguished.
fn with_port(authority: &str) -> Option<(&str, &str)> {
    let (address, port) = authority.rsplit_once(':')?;
    let long = port.len() >= 4 && is_port(port) && port != "0000";
    let parses = address.parse::<Ipv6Addr>().is_ok();
    let only = authority.parse::<Ipv6Addr>().is_err();
    (parses && (long || only && is_port(port) && !port.is_empty())).then_some((address, port))
}

fn bracketed(scheme: &str, authority: &str) -> String {
    match with_port(authority) {
        _ if authority.starts_with('[') => format!("{scheme}://{authority}"),
        Some((address, port)) => format!("{scheme}://[{address}]:{port}"),
        None => format!("{scheme}://[{authority}]"),
    }
}

#[cfg(test)]
pub(super) mod tests;
