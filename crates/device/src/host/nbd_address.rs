//! Addresses of exports, as the NBD project's `doc/uri.md` writes them.
//!
//! `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`; with TLS `nbds://` and `nbds+unix://`. An export's name may be empty (the
//! server's default). `%XX` stands for a byte. The scheme with vsock is known, and refused by name.
//!
//! Parameters, separated by `&`: those of the NBD project (`socket=`, `tls-certificates=`, `tls-hostname=`), and `connections=` and `reconnect=`, which are this
//! program's.

use crate::os_name;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The port that IANA gave to NBD.
pub const NBD_PORT: u16 = 10809;

/// Addresses are compared before anything is opened.
const SCHEMES: [&[u8]; 6] = [
    b"nbd://",
    b"nbd+unix://",
    b"nbd+vsock://",
    b"nbds://",
    b"nbds+unix://",
    b"nbds+vsock://",
];

/// How the server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdEndpoint {
    /// Over TCP.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// Over a socket of this host.
    Unix(PathBuf),
}

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    /// How its server is reached.
    pub endpoint: NbdEndpoint,
    /// Its name; empty for the server's default.
    pub export: String,
    /// The folder of certificates, with TLS.
    pub tls: Option<PathBuf>,
    /// The name that the server's certificate must have; without one, the host's (`localhost` for a socket of this host).
    pub tls_hostname: Option<String>,
    /// How many connections are used where the server allows several. Without a number: one.
    pub connections: Option<usize>,
    /// How long a lost connection is waited for. Without a time: as the options of the connection says.
    pub reconnect: Option<Duration>,
}

/// The most connections to one export.
pub const CONNECTIONS_MAX: usize = 16;
/// The longest time that a lost connection is waited for.
const RECONNECT_MAX: u64 = 7 * 86_400;

/// The longest name of an export that the protocol has.
const EXPORT_BYTES_MAX: usize = 4096;

/// How long the scheme at the start of a place is, its `://` included, when the place is an address. Files whose
/// path begins like that are written with `./` in front.
#[must_use]
pub fn scheme_len(place: &[u8]) -> Option<usize> {
    let scheme = SCHEMES.iter().find(|scheme| place.starts_with(scheme))?;
    Some(scheme.len())
}

/// Replaces `%XX`.
fn decode(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            out.push(first);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|b| char::from(*b).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err("`%` without two hexadecimal digits behind it".into());
        };
        out.push((high << 4 | low) as u8);
        rest = &tail[2..];
    }
    Ok(out)
}

fn encode(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for &byte in bytes {
        // `:` too: `:/` ends the image of an operand.
        if byte.is_ascii_alphanumeric() || b"/-._~+@".contains(&byte) {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}

fn text_of(bytes: &[u8], what: &str) -> Result<String, String> {
    String::from_utf8(decode(bytes)?).map_err(|_| format!("the {what} is not UTF-8"))
}

fn host_and_port(authority: &[u8]) -> Result<NbdEndpoint, String> {
    // A user's name means nothing without TLS.
    let place = match authority.iter().rposition(|&b| b == b'@') {
        Some(at) => &authority[at + 1..],
        None => authority,
    };
    let (host, port) = if let Some(rest) = place.strip_prefix(b"[") {
        let end = rest
            .iter()
            .position(|&b| b == b']')
            .ok_or("`[` without `]`")?;
        (&rest[..end], &rest[end + 1..])
    } else {
        let end = place.iter().position(|&b| b == b':');
        place.split_at(end.unwrap_or(place.len()))
    };
    let host = text_of(host, "host's name")?;
    if host.is_empty() {
        return Err("no host is named".into());
    }
    let port = match port {
        b"" | b":" => NBD_PORT,
        [b':', digits @ ..] => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok())
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("`{}` is no port", digits.escape_ascii()))?,
        other => return Err(format!("`{}` behind the host", other.escape_ascii())),
    };
    Ok(NbdEndpoint::Tcp { host, port })
}

impl NbdAddress {
    /// The address of an export, without parameters.
    #[must_use]
    pub fn new(endpoint: NbdEndpoint, export: impl Into<String>) -> Self {
        NbdAddress {
            endpoint,
            export: export.into(),
            tls: None,
            tls_hostname: None,
            connections: None,
            reconnect: None,
        }
    }

    /// The same export without what only concerns the way to it.
    #[must_use]
    pub fn identity(&self) -> Self {
        Self::new(self.endpoint.clone(), self.export.clone())
    }

    /// Reads an address. `None` when the place is none, but a path.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without the address.
    pub fn parse(place: &Path) -> Option<Result<Self, String>> {
        let bytes = os_name::bytes(place);
        let scheme = scheme_len(bytes)?;
        Some(Self::parse_rest(&bytes[..scheme - 3], &bytes[scheme..]))
    }

    fn parse_rest(scheme: &[u8], rest: &[u8]) -> Result<Self, String> {
        if scheme.ends_with(b"+vsock") {
            return Err("NBD over vsock is not supported".into());
        }
        let is_secure = scheme.starts_with(b"nbds");
        let (rest, query) = match rest.iter().position(|&b| b == b'?') {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &b""[..]),
        };
        let (authority, path) = match rest.iter().position(|&b| b == b'/') {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &b""[..]),
        };
        let export = text_of(path, "export's name")?;
        if export.len() > EXPORT_BYTES_MAX {
            return Err(format!(
                "the export's name is longer than {EXPORT_BYTES_MAX} bytes"
            ));
        }
        let mut socket = None;
        let mut address = Self::new(NbdEndpoint::Unix(PathBuf::new()), export);
        for pair in query.split(|&b| b == b'&').filter(|pair| !pair.is_empty()) {
            let (name, value) = match pair.iter().position(|&b| b == b'=') {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &b""[..]),
            };
            match name {
                b"socket" => socket = Some(decode(value)?),
                b"tls-certificates" if !value.is_empty() => {
                    address.tls = Some(PathBuf::from(os_name::of_vec(decode(value)?)));
                }
                b"tls-hostname" => address.tls_hostname = Some(text_of(value, "server's name")?),
                b"tls-psk-file" | b"tls-username" => {
                    return Err("TLS with pre-shared keys is not supported".into());
                }
                b"connections" => {
                    let count = number(value).filter(|n| (1..=CONNECTIONS_MAX as u64).contains(n));
                    let why = || format!("connections= is not 1 to {CONNECTIONS_MAX}");
                    address.connections = Some(count.ok_or_else(why)? as usize);
                }
                b"reconnect" => {
                    let seconds = number(value).filter(|n| *n <= RECONNECT_MAX);
                    let why = || format!("reconnect= is not 0 to {RECONNECT_MAX} seconds");
                    address.reconnect = Some(Duration::from_secs(seconds.ok_or_else(why)?));
                }
                _ => return Err(format!("unknown parameter `{}`", pair.escape_ascii())),
            }
        }
        match (is_secure, &address.tls, &address.tls_hostname) {
            (true, None, _) => return Err("nbds needs `tls-certificates=DIR`".into()),
            (false, Some(_), _) | (false, _, Some(_)) => {
                return Err("parameters of TLS go with nbds".into());
            }
            _ => {}
        }
        address.endpoint = match (scheme.ends_with(b"+unix"), socket) {
            (false, None) => host_and_port(authority)?,
            (false, Some(_)) => return Err("`socket=` goes with nbd+unix".into()),
            (true, Some(path)) if !path.is_empty() => {
                if !authority.is_empty() {
                    return Err("nbd+unix has three slashes: there is no host".into());
                }
                NbdEndpoint::Unix(PathBuf::from(os_name::of_vec(path)))
            }
            _ => return Err("nbd+unix needs `?socket=PATH`".into()),
        };
        Ok(address)
    }

    /// The same, independent of the working directory.
    ///
    /// # Errors
    /// When there is no working directory.
    pub fn absolute(self) -> std::io::Result<Self> {
        let endpoint = match self.endpoint {
            NbdEndpoint::Unix(path) => NbdEndpoint::Unix(std::path::absolute(path)?),
            tcp => tcp,
        };
        let tls = self.tls.map(std::path::absolute).transpose()?;
        Ok(NbdAddress {
            endpoint,
            tls,
            ..self
        })
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match &self.tls {
            Some(_) => "nbds",
            None => "nbd",
        };
        let mut separator = '?';
        let mut next = || std::mem::replace(&mut separator, '&');
        match &self.endpoint {
            NbdEndpoint::Tcp { host, port } => {
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}/")?;
                } else {
                    write!(f, "{scheme}://")?;
                    encode(f, host.as_bytes())?;
                    write!(f, ":{port}/")?;
                }
                encode(f, self.export.as_bytes())?;
            }
            NbdEndpoint::Unix(path) => {
                write!(f, "{scheme}+unix:///")?;
                encode(f, self.export.as_bytes())?;
                write!(f, "{}socket=", next())?;
                encode(f, os_name::bytes(path))?;
            }
        }
        if let Some(folder) = &self.tls {
            write!(f, "{}tls-certificates=", next())?;
            encode(f, os_name::bytes(folder))?;
        }
        if let Some(name) = &self.tls_hostname {
            write!(f, "{}tls-hostname=", next())?;
            encode(f, name.as_bytes())?;
        }
        if let Some(count) = self.connections {
            write!(f, "{}connections={count}", next())?;
        }
        if let Some(time) = self.reconnect {
            write!(f, "{}reconnect={}", next(), time.as_secs())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<NbdAddress, String> {
        NbdAddress::parse(Path::new(text)).expect("an address")
    }

    fn tcp(host: &str, port: u16, export: &str) -> NbdAddress {
        let host = host.into();
        NbdAddress::new(NbdEndpoint::Tcp { host, port }, export)
    }

    #[test]
    fn addresses_are_read_and_written() {
        for (text, address, again) in [
            ("nbd://h", tcp("h", NBD_PORT, ""), "nbd://h:10809/"),
            ("nbd://h:/", tcp("h", NBD_PORT, ""), "nbd://h:10809/"),
            ("nbd://h:7/a/b", tcp("h", 7, "a/b"), "nbd://h:7/a/b"),
            (
                "nbd://u@1.2.3.4/x%20%3A",
                tcp("1.2.3.4", NBD_PORT, "x :"),
                "nbd://1.2.3.4:10809/x%20%3A",
            ),
            (
                "nbd://[::1]:8000/",
                tcp("::1", 8000, ""),
                "nbd://[::1]:8000/",
            ),
        ] {
            assert_eq!(parsed(text), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string(), again);
            assert_eq!(parsed(again), Ok(address));
        }
        let unix = parsed("nbd+unix:///disk?socket=/run/a%3Ab.sock").unwrap();
        assert_eq!(
            unix.endpoint,
            NbdEndpoint::Unix(PathBuf::from("/run/a:b.sock"))
        );
        assert_eq!(unix.export, "disk");
        assert_eq!(unix.to_string(), "nbd+unix:///disk?socket=/run/a%3Ab.sock");
        let relative = parsed("nbd+unix:///?socket=s").unwrap().absolute().unwrap();
        assert!(matches!(relative.endpoint, NbdEndpoint::Unix(path) if path.is_absolute()));
    }

    #[test]
    fn parameters_are_read_and_written() {
        let text = "nbds://h:7/x?tls-certificates=/etc/pki/a%3Ab&tls-hostname=other&connections=4&reconnect=0";
        let address = parsed(text).unwrap();
        assert_eq!(address.tls.as_deref(), Some(Path::new("/etc/pki/a:b")));
        assert_eq!(address.tls_hostname.as_deref(), Some("other"));
        assert_eq!(address.connections, Some(4));
        assert_eq!(address.reconnect, Some(Duration::ZERO));
        assert_eq!(address.to_string(), text);
        assert_eq!(address.identity(), tcp("h", 7, "x"));
        let text = "nbds+unix:///?socket=/s&tls-certificates=pki";
        let address = parsed(text).unwrap();
        assert_eq!(address.to_string(), text);
        assert!(address.absolute().unwrap().tls.unwrap().is_absolute());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("nbds://h/x", "tls-certificates"),
            ("nbd://h/x?tls-certificates=/p", "go with nbds"),
            ("nbds://h/x?tls-psk-file=/p", "pre-shared"),
            ("nbd://h/x?connections=0", "1 to 16"),
            ("nbd://h/x?connections=17", "1 to 16"),
            ("nbd://h/x?connections=+1", "1 to 16"),
            ("nbd://h/x?reconnect=x", "seconds"),
            ("nbds+vsock://2/x", "vsock"),
            ("nbd+vsock://2/x", "vsock"),
            ("nbd:///x", "no host"),
            ("nbd://h:70000/", "no port"),
            ("nbd://h:0/", "no port"),
            ("nbd://h/%zz", "hexadecimal"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbd://[::1", "`]`"),
            ("nbd://h/x?socket=/s", "nbd+unix"),
            ("nbd://h/x?tls=1", "unknown parameter"),
            ("nbd+unix:///x", "socket=PATH"),
            ("nbd+unix://h/x?socket=/s", "no host"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        for path in ["disk.img", "./nbd://h/x", "nbd:/x", "/nbd://x"] {
            assert!(NbdAddress::parse(Path::new(path)).is_none(), "{path}");
        }
    }
}
