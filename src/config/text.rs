//! Parses configurations from strings such as `send_depth=8`, or from environment variables. Both
//! assign values to fields by name.

use std::{env, str::FromStr, time::Duration};

use crate::{config::Config, error::Error, poll::Polling, transport_choice::TransportChoice};

/// The names of all fields.
const NAMES: [&str; 24] = [
    "receive_window",
    "shared_receive",
    "eager_size",
    "max_message",
    "large_memory",
    "registration_cache",
    "stream_buffer",
    "send_depth",
    "connect_timeout",
    "close_timeout",
    "keepalive_interval",
    "keepalive_timeout",
    "read_timeout",
    "resume",
    "transport",
    "traffic_class",
    "polling",
    "rdma.max_inline",
    "rdma.resolve_timeout",
    "rdma.retry_count",
    "rdma.ack_timeout",
    "rdma.completion_vector",
    "rdma.relaxed_ordering",
    "rdma.thread_domain",
];

impl Config {
    /// Sets the field with this name to the value in the text. This method does not check the range
    /// of the value; [`check`](Self::check) does.
    ///
    /// | field | text |
    /// |---|---|
    /// | a number | `64`; a multiple of 1024 also as `16KiB`, `64MiB` or `1GiB` |
    /// | a duration | a number and a unit: `200us`, `500ms`, `1.5s`, `2min` or `1h` |
    /// | an `Option` | its value, or `none` |
    /// | a `bool` | `true` or `false` |
    /// | `transport` | `environment`, `auto`, `rdma`, `tcp` or `memory`, in upper or lower case |
    /// | `rdma.relaxed_ordering` | `auto`, `on` or `off` |
    /// | `polling` | `event`, `busy`, `adaptive`, or `adaptive:500us` to spin up to 500 µs |
    ///
    /// The names of the fields of [`rdma`](Self::rdma) begin with `rdma.`: `rdma.retry_count`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for an unknown name, and for a text that the field does not accept.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// use std::time::Duration;
    ///
    /// let mut config = rdmsg::Config::default();
    /// config.set("keepalive_timeout", "20s")?;
    /// assert_eq!(config.keepalive_timeout, Duration::from_secs(20));
    /// let error = config.set("keepalive_timout", "20s").unwrap_err();
    /// assert!(error.to_string().contains("keepalive_timout"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(&mut self, field: &str, value: &str) -> Result<(), Error> {
        let known = NAMES.into_iter().find(|name| *name == field);
        let Some(name) = known else {
            return Err(unknown(field));
        };
        let expected = self.field(name).read(value.trim());
        expected.map_err(|expected| Error::InvalidConfig {
            field: name,
            value: format!("{value:?}"),
            allowed: expected.to_owned(),
        })
    }

    /// Returns the default configuration after environment variables have changed it: see
    /// [`apply_env`](Self::apply_env).
    ///
    /// # Errors
    ///
    /// The errors of [`apply_env`](Self::apply_env).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let config = rdmsg::Config::from_env("MY_SERVICE_RDMSG_")?;
    /// let connector = rdmsg::Connector::new().config(&config);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env(prefix: &str) -> Result<Self, Error> {
        let mut config = Self::default();
        config.apply_env(prefix)?;
        Ok(config)
    }

    /// Sets the fields for which the environment contains a variable. Other fields are unchanged.
    /// Call this after reading a file, so that the environment takes precedence.
    ///
    /// The name of a field's variable is the prefix followed by the field's name in upper case,
    /// with `_` in place of `.`. With the prefix `RDMSG_` the variable `RDMSG_RECEIVE_WINDOW` sets
    /// [`receive_window`](Self::receive_window), and `RDMSG_RDMA_RETRY_COUNT` sets
    /// `rdma.retry_count`. The values have the form that [`set`](Self::set) describes. Use the
    /// prefix for the configuration only: any other variable with this prefix, for instance a
    /// misspelled name, is an error.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], with the name of the variable, if the variable belongs to no
    /// field, if its value has a wrong form, or if [`check`](Self::check) refuses the value. This
    /// method also fails if a field that no variable sets is invalid; then the error names the
    /// field. After an error the configuration is unchanged.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// // The text could also come from a file.
    /// let mut config: rdmsg::Config = "receive_window=64 polling=event".parse()?;
    /// config.apply_env("MY_SERVICE_RDMSG_")?; // MY_SERVICE_RDMSG_RECEIVE_WINDOW=128
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply_env(&mut self, prefix: &str) -> Result<(), Error> {
        let named = env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let field = name.strip_prefix(prefix)?.to_owned();
            Some((name, field, value))
        });
        let (mut config, mut variables) = (self.clone(), Vec::new());
        for (variable, suffix, value) in named {
            let is_of = |name: &&str| name.replace('.', "_").eq_ignore_ascii_case(&suffix);
            let Some(field) = NAMES.into_iter().find(is_of) else {
                return Err(unknown(&variable));
            };
            variables.push((field, variable));
            let set = config.set(field, &value.to_string_lossy());
            set.map_err(|error| in_variable(error, &variables))?;
        }
        let checked = config.check();
        checked.map_err(|error| in_variable(error, &variables))?;
        *self = config;
        Ok(())
    }

    /// Returns the field `name`, which must be one of [`NAMES`].
    fn field(&mut self, name: &str) -> &mut dyn Text {
        match name {
            "receive_window" => &mut self.receive_window,
            "shared_receive" => &mut self.shared_receive,
            "eager_size" => &mut self.eager_size,
            "max_message" => &mut self.max_message,
            "large_memory" => &mut self.large_memory,
            "registration_cache" => &mut self.registration_cache,
            "stream_buffer" => &mut self.stream_buffer,
            "send_depth" => &mut self.send_depth,
            "connect_timeout" => &mut self.connect_timeout,
            "close_timeout" => &mut self.close_timeout,
            "keepalive_interval" => &mut self.keepalive_interval,
            "keepalive_timeout" => &mut self.keepalive_timeout,
            "read_timeout" => &mut self.read_timeout,
            "resume" => &mut self.resume,
            "transport" => &mut self.transport,
            "traffic_class" => &mut self.traffic_class,
            "polling" => &mut self.polling,
            "rdma.max_inline" => &mut self.rdma.max_inline,
            "rdma.resolve_timeout" => &mut self.rdma.resolve_timeout,
            "rdma.retry_count" => &mut self.rdma.retry_count,
            "rdma.ack_timeout" => &mut self.rdma.ack_timeout,
            "rdma.completion_vector" => &mut self.rdma.completion_vector,
            "rdma.relaxed_ordering" => &mut self.rdma.relaxed_ordering,
            "rdma.thread_domain" => &mut self.rdma.thread_domain,
            other => unreachable!("{other} must be one of NAMES"),
        }
    }
}

/// Adds the variable's name to the error if an environment variable set the field. Otherwise,
/// returns the error unchanged.
fn in_variable(mut error: Error, variables: &[(&str, String)]) -> Error {
    if let Error::InvalidConfig { field, value, .. } = &mut error {
        // The variable of the field `polling` also sets the spin time.
        let name = field.strip_suffix(".spin").unwrap_or(field);
        if let Some((_, variable)) = variables.iter().find(|(field, _)| *field == name) {
            *value = format!("{value} in {variable}");
        }
    }
    error
}

fn unknown(name: &str) -> Error {
    Error::InvalidConfig {
        field: "the name of a field",
        value: name.to_owned(),
        allowed: NAMES.join(", "),
    }
}

/// Parses `field=value` pairs, separated by white space, and applies them to the default
/// configuration. The values have the form that [`Config::set`] describes. The result has passed
/// [`Config::check`].
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), rdmsg::Error> {
/// let config: rdmsg::Config = "receive_window=64 polling=event rdma.retry_count=5".parse()?;
/// assert_eq!(config.receive_window, Some(64));
/// # Ok(())
/// # }
/// ```
impl FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut config = Self::default();
        for pair in text.split_whitespace() {
            let (field, value) = pair.split_once('=').unwrap_or((pair, ""));
            config.set(field, value)?;
        }
        config.check()?;
        Ok(config)
    }
}

/// A value that can be parsed from text, and formatted as text.
pub(crate) trait Text {
    /// Parses the text and stores its value. The error describes the expected form.
    fn read(&mut self, text: &str) -> Result<(), &'static str>;

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String;
}

macro_rules! number {
    ($($number:ty),*) => {
        $(impl Text for $number {
            fn read(&mut self, text: &str) -> Result<(), &'static str> {
                const EXPECTED: &str = "a number, such as 64 or 16KiB, that the field can hold";
                let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
                let unit = units.into_iter().find_map(|(unit, bits)| {
                    Some((text.strip_suffix(unit)?.trim_end(), bits))
                });
                let (digits, bits) = unit.unwrap_or((text, 0));
                let number: u64 = digits.parse().map_err(|_| EXPECTED)?;
                let all = number.checked_mul(1 << bits).ok_or(EXPECTED)?;
                *self = all.try_into().map_err(|_| EXPECTED)?;
                Ok(())
            }

            #[cfg(any(feature = "serde", test))]
            fn write(&self) -> String {
                self.to_string()
            }
        })*
    };
}
number!(u8, u16, u32, u64);

impl Text for bool {
    fn read(&mut self, text: &str) -> Result<(), &'static str> {
        *self = text.parse().map_err(|_| "true or false")?;
        Ok(())
    }

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String {
        self.to_string()
    }
}

impl Text for Duration {
    fn read(&mut self, text: &str) -> Result<(), &'static str> {
        const EXPECTED: &str = "a duration, such as 500ms, 1.5s, 2min or 1h";
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let nanos = match unit.trim_start() {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "min" => 60e9,
            "h" => 3600e9,
            "" if number == "0" => 1.0,
            _ => return Err(EXPECTED),
        };
        let number: f64 = number.parse().map_err(|_| EXPECTED)?;
        let nanos = (number * nanos).round();
        *self = Self::try_from_secs_f64(nanos / 1e9).map_err(|_| EXPECTED)?;
        Ok(())
    }

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String {
        format!("{self:?}")
    }
}

impl<T: Text + Default> Text for Option<T> {
    fn read(&mut self, text: &str) -> Result<(), &'static str> {
        *self = match text {
            "none" => None,
            text => {
                let mut value = T::default();
                value.read(text)?;
                Some(value)
            }
        };
        Ok(())
    }

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), Text::write)
    }
}

impl Text for TransportChoice {
    fn read(&mut self, text: &str) -> Result<(), &'static str> {
        const EXPECTED: &str = "environment, auto, rdma, tcp or memory";
        *self = match Self::named(text) {
            Some(named) => named,
            None if text.eq_ignore_ascii_case("environment") => Self::Environment,
            None => return Err(EXPECTED),
        };
        Ok(())
    }

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Text for Polling {
    fn read(&mut self, text: &str) -> Result<(), &'static str> {
        const EXPECTED: &str =
            "event, busy, adaptive, or adaptive with the longest spin, such as adaptive:500us";
        *self = match text.split_once(':') {
            None if text == "event" => Self::Event,
            None if text == "busy" => Self::Busy,
            None if text == "adaptive" => Self::default(),
            Some(("adaptive", longest)) => {
                let mut spin = Duration::ZERO;
                spin.read(longest).map_err(|_| EXPECTED)?;
                Self::Adaptive { spin }
            }
            _ => return Err(EXPECTED),
        };
        Ok(())
    }

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String {
        match self {
            Self::Adaptive { spin } => format!("adaptive:{spin:?}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

/// Serializes a field as its [`Text`], and deserializes it from that text.
#[cfg(feature = "serde")]
pub(crate) mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{Text, reader::Reader};

    pub(crate) fn serialize<S: Serializer>(
        value: &impl Text,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&value.write())
    }

    pub(crate) fn deserialize<'de, T: Text + Default, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(Reader::new());
        }
        let text = String::deserialize(deserializer)?;
        Reader::new().read(&text).map_err(Error::custom)
    }
}

/// Serializes a number or a `bool` as a value of its type, and deserializes it from such a value or
/// from its [`Text`].
#[cfg(feature = "serde")]
pub(crate) mod as_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Text, reader::Reader};

    pub(crate) fn serialize<S: Serializer>(
        value: &impl Serialize,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: Text + Default + Deserialize<'de>,
        D: Deserializer<'de>,
    {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Reader::new())
        } else {
            // A binary format does not store the types of its values, so each field has only one
            // form.
            T::deserialize(deserializer)
        }
    }
}

/// Deserializes a field from a text, a `bool`, a number, or an optional value.
#[cfg(feature = "serde")]
mod reader {
    use std::{fmt, marker::PhantomData};

    use serde::de::{Deserializer, Error, Visitor};

    use super::Text;

    pub(super) struct Reader<T>(PhantomData<T>);

    impl<T: Text + Default> Reader<T> {
        pub(super) fn new() -> Self {
            Self(PhantomData)
        }

        pub(super) fn read(self, text: &str) -> Result<T, String> {
            let mut value = T::default();
            match value.read(text) {
                Ok(()) => Ok(value),
                Err(expected) => Err(format!("{text:?} is not {expected}")),
            }
        }
    }

    impl<'de, T: Text + Default> Visitor<'de> for Reader<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match T::default().read("") {
                Ok(()) => Ok(()),
                Err(expected) => f.write_str(expected),
            }
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            self.read(text).map_err(E::custom)
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
            self.visit_str(&value.to_string())
        }

        fn visit_none<E: Error>(self) -> Result<T, E> {
            self.visit_str("none")
        }

        fn visit_unit<E: Error>(self) -> Result<T, E> {
            self.visit_str("none")
        }

        fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<T, D::Error> {
            value.deserialize_any(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_name_and_comes_back_from_text() {
        let mut config: Config = "receive_window=7 shared_receive=4096 eager_size=1KiB \
            max_message=2MiB large_memory=1GiB registration_cache=0 stream_buffer=128KiB \
            send_depth=9 connect_timeout=1.5s close_timeout=0 keepalive_interval=none \
            keepalive_timeout=2min read_timeout=1h resume=0 transport=TCP \
            traffic_class=104 polling=adaptive:15us rdma.max_inline=3 rdma.resolve_timeout=70ms \
            rdma.retry_count=1 rdma.ack_timeout=none rdma.completion_vector=2 \
            rdma.relaxed_ordering=on rdma.thread_domain=false"
            .parse()
            .unwrap();
        let default = format!("{:?}", Config::default());
        let shown = format!("{config:?}");
        // Returns the field names in a `Debug` text. A field looks like `send_depth: 9`.
        let words = |text: &str| -> Vec<String> {
            let words = text.split([' ', '{', '(']);
            let names = words.filter_map(|word| word.strip_suffix(':'));
            names.map(str::to_owned).collect()
        };
        let private = [
            "listening",
            "backlog",
            "half_open",
            "inherited",
            "is_of_pair",
            "label",
            "rebind",
            "retry_refused",
            "reuse_port",
            "source",
            "stream",
        ];
        let all = words(&shown);
        let named = |name: &&String| {
            let name = name.as_str();
            let suffix = format!("rdma.{name}");
            NAMES.contains(&name) || NAMES.contains(&suffix.as_str())
        };
        let others: Vec<_> = all.iter().filter(|name| !named(name)).collect();
        for name in others {
            let known =
                ["rdma", "spin"].contains(&name.as_str()) || private.contains(&name.as_str());
            assert!(known, "{name} must be in NAMES or in the private fields");
        }
        let texts = NAMES.map(|name| config.field(name).write());
        let mut again = Config::default();
        for (name, text) in NAMES.iter().zip(&texts) {
            let field = |config: &mut Config| config.field(name).write();
            if *name != "resume" {
                assert_ne!(field(&mut again), *text, "the text must change {name}");
            }
            again.set(name, text).unwrap();
        }
        assert_eq!(again, config);
        assert_ne!(shown, default);
    }

    #[test]
    fn wrong_texts_are_refused_by_name() {
        let refused = |text: &str| text.parse::<Config>().unwrap_err().to_string();
        for name in NAMES {
            let error = refused(&format!("{name}=wrong"));
            let expected = format!("invalid configuration: {name} is \"wrong\", allowed is ");
            assert!(error.starts_with(&expected), "{error}");
        }
        for (text, part) in [
            (
                "recieve_window=3",
                "the name of a field is recieve_window, allowed is receive_window",
            ),
            (
                "receive_window",
                "receive_window is \"\", allowed is a number",
            ),
            ("receive_window=70000", "receive_window is \"70000\""),
            (
                "receive_window=0",
                "receive_window is 0, allowed is 1 to 8192",
            ),
            ("max_message=99999999TiB", "max_message is \"99999999TiB\""),
            ("read_timeout=5", "allowed is a duration, such as 500ms"),
            ("read_timeout=1e400s", "allowed is a duration"),
            ("read_timeout=-1s", "allowed is a duration"),
            (
                "read_timeout=2h",
                "read_timeout is 7200s, allowed is 100ms to 3600s",
            ),
            (
                "transport=rmda",
                "transport is \"rmda\", allowed is environment, auto, rdma, tcp or memory",
            ),
        ] {
            let error = refused(text);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, duration) in [
            ("0", Duration::ZERO),
            ("15 us", Duration::from_micros(15)),
            ("1.5s", Duration::from_millis(1500)),
            ("0.1ms", Duration::from_micros(100)),
            ("3600s", Duration::from_secs(3600)),
            ("1h", Duration::from_secs(3600)),
            ("2min", Duration::from_secs(120)),
        ] {
            let mut read = Duration::MAX;
            read.read(text).unwrap();
            assert_eq!(read, duration, "{text}");
            read.read(&duration.write()).unwrap();
            assert_eq!(read, duration, "{text}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serialized_configurations_come_back() {
        use crate::EngineLimits;

        let text = "receive_window=64 connect_timeout=1.5s keepalive_interval=none transport=tcp \
                    rdma.retry_count=3 rdma.ack_timeout=none";
        let config: Config = text.parse().unwrap();
        let json = serde_json::to_string(&config).unwrap();
        for part in [
            r#""receive_window":64"#,
            r#""connect_timeout":"1.5s""#,
            r#""keepalive_interval":"none""#,
            r#""transport":"tcp""#,
            r#""rdma":{"max_inline":256,"#,
        ] {
            assert!(json.contains(part), "{part}: {json}");
        }
        assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
        let partial: Config = serde_json::from_str(r#"{"rdma": {"retry_count": 3}}"#).unwrap();
        let expected = Config::default().with(|config| config.rdma.retry_count = 3);
        assert_eq!(partial, expected);
        for (json, part) in [
            (
                r#"{"recieve_window": 64}"#,
                "unknown field `recieve_window`",
            ),
            (
                r#"{"connect_timeout": "5"}"#,
                "\"5\" is not a duration, such as 500ms",
            ),
            (
                r#"{"connect_timeout": 5}"#,
                "\"5\" is not a duration, such as 500ms",
            ),
            (
                r#"{"receive_window": -1}"#,
                "\"-1\" is not a number, such as 64 or 16KiB, that the field can hold",
            ),
            (
                r#"{"receive_window": "128KiB"}"#,
                "\"128KiB\" is not a number, such as 64 or 16KiB, that the field can hold",
            ),
            (
                r#"{"max_message": null}"#,
                "\"none\" is not a number, such as 64 or 16KiB, that the field can hold",
            ),
            (
                r#"{"rdma": {"thread_domain": 1}}"#,
                "\"1\" is not true or false",
            ),
            (
                r#"{"max_message": [1]}"#,
                "invalid type: sequence, expected a number, such as 64 or 16KiB",
            ),
            (r#"{"stream": true}"#, "unknown field `stream`"),
        ] {
            let error = serde_json::from_str::<Config>(json)
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
        let limits: EngineLimits = serde_json::from_str(r#"{"held": 1048576}"#).unwrap();
        assert_eq!(limits.held, 1 << 20);
        assert_eq!(limits.pinned, EngineLimits::default().pinned);
        let limits: EngineLimits = serde_json::from_str(r#"{"held": "1MiB"}"#).unwrap();
        assert_eq!(limits.held, 1 << 20);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn files_have_the_texts_of_all_fields() {
        use std::collections::BTreeMap;

        use serde_json::{Value, json};

        let wanted: Config = "receive_window=7 shared_receive=4KiB eager_size=none \
            max_message=2MiB polling=busy rdma.max_inline=3 rdma.ack_timeout=20 \
            rdma.relaxed_ordering=on rdma.thread_domain=false"
            .parse()
            .unwrap();
        let mut source = wanted.clone();
        let mut texts: BTreeMap<&str, Value> = BTreeMap::new();
        let mut rdma: BTreeMap<&str, Value> = BTreeMap::new();
        for name in NAMES {
            let text = Value::String(source.field(name).write());
            match name.strip_prefix("rdma.") {
                Some(name) => rdma.insert(name, text),
                None => texts.insert(name, text),
            };
        }
        texts.insert("rdma", json!(rdma));
        let read: Config = serde_json::from_value(json!(texts)).unwrap();
        assert_eq!(read, wanted);
        let null = serde_json::from_str::<Config>(r#"{"eager_size": null}"#).unwrap();
        assert_eq!(null.eager_size, None);
        let sizes: Config = serde_json::from_str(r#"{"eager_size": "8KiB"}"#).unwrap();
        assert_eq!(sizes.eager_size, Some(8192));
    }
}
