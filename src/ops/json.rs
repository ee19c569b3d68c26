//! Results for programs, as JSON. The library has no other use for JSON, so nothing here reads it.

use std::fmt;

pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(i128),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Number(value) => write!(f, "{value}"),
            Json::Text(text) => quoted(text, f),
            Json::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    f.write_str(if at > 0 { "," } else { "" })?;
                    item.fmt(f)?;
                }
                f.write_str("]")
            }
            Json::Object(fields) => {
                f.write_str("{")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if at > 0 { "," } else { "" })?;
                    quoted(name, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\0'..' ' => write!(f, "\\u{:04x}", u32::from(c))?,
            _ => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {
        $(impl From<$number> for Json {
            fn from(number: $number) -> Json {
                Json::Number(number.into())
            }
        })+
    };
}

numbers!(u32, u64, i64);

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Json {
        value.map_or(Json::Null, Into::into)
    }
}

impl FromIterator<Json> for Json {
    fn from_iter<I: IntoIterator<Item = Json>>(items: I) -> Json {
        Json::List(items.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_as_json() {
        let object = |fields: Vec<(&'static str, Json)>| Json::Object(fields);
        for (value, text) in [
            (None::<u32>.into(), "null"),
            (true.into(), "true"),
            (u64::MAX.into(), "18446744073709551615"),
            (Some(-7_i64).into(), "-7"),
            ("".into(), "\"\""),
            ("a\"b\\c".into(), r#""a\"b\\c""#),
            (
                "é\n\u{1f}\u{7f}\u{202e}".into(),
                "\"é\\u000a\\u001f\u{7f}\u{202e}\"",
            ),
            (Json::from_iter([]), "[]"),
            (
                Json::from_iter([false.into(), "x".into()]),
                r#"[false,"x"]"#,
            ),
            (object(Vec::new()), "{}"),
            (
                object(vec![
                    ("a", 1_u32.into()),
                    ("b", object(vec![("c", Json::Null)])),
                ]),
                r#"{"a":1,"b":{"c":null}}"#,
            ),
        ] {
            assert_eq!(value.to_string(), text);
        }
    }
}
