//! Stores and indexes in S3: `s3+https://HOST/BUCKET/PREFIX[?region=REGION][&lookup=path|dns]`, desync's spelling, and the signatures of requests.
//!
//! Objects are named as in a folder, below the prefix. It calls neither the network nor files: `http` sends what is signed here.
//!
//! References: "Authenticating Requests (AWS Signature Version 4)" in the Amazon S3 API Reference; desync's README.

use crate::percent::{decode, encode_path};
use crate::{Error, Result};
use ring::{digest, hmac};
use std::env;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// How such a place begins.
const SCHEMES: [&str; 2] = ["s3+http://", "s3+https://"];
/// The region of servers that know none.
const REGION: &str = "us-east-1";

/// A place in a bucket of an S3 server: a prefix of names, or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Place {
    /// As it was given, without `/` at its end.
    text: String,
    secure: bool,
    /// With the port, unless it is that of the scheme. With the bucket in front for `lookup=dns`.
    host: String,
    bucket: String,
    /// `/BUCKET/PREFIX`, or `/PREFIX` for `lookup=dns`; without `%XX`, and without `/` at its end.
    path: Vec<u8>,
    region: Option<String>,
}

impl S3Place {
    /// Reads a place of which [`is_s3`] holds, in characters that URLs have.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub(crate) fn parse(text: &str, what: &str) -> Result<Self> {
        // What looks like keys is not repeated.
        let shown = if text.contains('@') { "in S3" } else { text };
        let wrong = |why: &str| Error::Address(format!("the {what} {shown}: {why}"));
        let (url, query) = text.split_once('?').unwrap_or((text, ""));
        let url = url.trim_end_matches('/');
        let (secure, rest) = match url.strip_prefix("s3+https:/") {
            Some(rest) => (true, rest),
            None => (false, url.strip_prefix("s3+http:/").unwrap_or_default()),
        };
        let shape = "an S3 place is s3+https://HOST/BUCKET/PREFIX";
        let rest = rest.strip_prefix('/').ok_or_else(|| wrong(shape))?;
        if rest
            .split('/')
            .next()
            .is_some_and(|host| host.contains('@'))
        {
            return Err(wrong("keys come from the environment, not from the URL"));
        }
        let (host, path) = rest.split_once('/').ok_or_else(|| wrong(shape))?;
        let path = path.trim_start_matches('/');
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let is_bucket = !bucket.is_empty() && bucket.bytes().all(is_name);
        if host.is_empty() || !is_bucket {
            return Err(wrong(shape));
        }
        let (mut region, mut dns) = (None, false);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("region", name)) if name.bytes().all(is_name) && !name.is_empty() => {
                    region = Some(name.to_owned());
                }
                Some(("lookup", "dns")) => dns = true,
                Some(("lookup", "path" | "auto")) => dns = false,
                _ => return Err(wrong("there are `region=REGION` and `lookup=path|dns`")),
            }
        }
        let prefix = decode(prefix.as_bytes())?;
        let port = if secure { ":443" } else { ":80" };
        let host = host.strip_suffix(port).unwrap_or(host);
        let mut path = match dns {
            true => Vec::new(),
            false => [b"/", bucket.as_bytes()].concat(),
        };
        if !prefix.is_empty() {
            path.push(b'/');
            path.extend(prefix);
        }
        Ok(S3Place {
            text: text.trim_end_matches('/').to_owned(),
            secure,
            host: match dns {
                true => format!("{bucket}.{host}"),
                false => host.to_owned(),
            },
            bucket: bucket.to_owned(),
            path,
            region,
        })
    }

    /// The bucket's name.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// An object below this place; the place itself for an empty name.
    pub(crate) fn object(&self, name: &str) -> Object {
        let mut path = self.path.clone();
        if !name.is_empty() {
            path.push(b'/');
            path.extend(name.as_bytes());
        }
        Object {
            secure: self.secure,
            host: self.host.clone(),
            bucket: self.bucket.clone(),
            path: encode_path(&path),
            region: self.region.clone(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether a place is one of S3.
pub(crate) fn is_s3(place: &[u8]) -> bool {
    SCHEMES.iter().any(|s| place.starts_with(s.as_bytes()))
}

/// What a request is about.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    secure: bool,
    pub(crate) host: String,
    pub(crate) bucket: String,
    /// The path of the URL, with `%XX`.
    path: String,
    region: Option<String>,
}

impl Object {
    /// For HTTP.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.host, self.path)
    }

    /// `s3.REGION.amazonaws.com` and `BUCKET.s3.REGION.amazonaws.com` say the region.
    fn region_of_host(&self) -> Option<&str> {
        let rest = self.host.strip_suffix(".amazonaws.com")?;
        let (rest, region) = rest.rsplit_once('.')?;
        (rest == "s3" || rest.ends_with(".s3")).then_some(region)
    }
}

/// The keys that requests are signed with, and the region that they are for unless a place names another. Nothing prints the secret ones.
#[derive(Clone, Default)]
pub struct S3Keys {
    keys: Option<Keys>,
    region: Option<String>,
}

#[derive(Clone)]
struct Keys {
    id: String,
    secret: String,
    token: Option<String>,
}

impl fmt::Debug for S3Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.keys.as_ref().map(|keys| &keys.id);
        write!(f, "S3Keys({id:?}, {:?})", self.region)
    }
}

impl S3Keys {
    /// Keys to sign with, and the token of a session if they are temporary.
    #[must_use]
    pub fn new(id: &str, secret: &str, token: Option<&str>) -> Self {
        S3Keys {
            keys: Some(Keys {
                id: id.to_owned(),
                secret: secret.to_owned(),
                token: token.map(str::to_owned),
            }),
            region: None,
        }
    }

    /// Those of `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, or `S3_ACCESS_KEY` and `S3_SECRET_KEY`; without them requests are
    /// not signed. The region is that of `AWS_REGION`, `AWS_DEFAULT_REGION` or `S3_REGION`.
    ///
    /// # Errors
    /// [`Error::Address`] when one of two keys is missing, or has characters that no key has.
    pub fn of_environment() -> Result<Self> {
        Self::of(|name| env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut found = S3Keys {
            keys: None,
            region: ["AWS_REGION", "AWS_DEFAULT_REGION", "S3_REGION"]
                .iter()
                .find_map(|name| set(name)),
        };
        let token = set("AWS_SESSION_TOKEN");
        for (id_name, secret_name, token) in [
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", token),
            ("S3_ACCESS_KEY", "S3_SECRET_KEY", None),
        ] {
            let missing = |set: &str, other: &str| {
                Err(Error::Address(format!("{set} is set, and {other} is not")))
            };
            match (set(id_name), set(secret_name)) {
                (None, None) => continue,
                (Some(_), None) => return missing(id_name, secret_name),
                (None, Some(_)) => return missing(secret_name, id_name),
                (Some(id), Some(secret)) => {
                    found.keys = Some(Keys { id, secret, token });
                    break;
                }
            }
        }
        // What becomes part of a header as it is.
        let id_and_token = found
            .keys
            .iter()
            .flat_map(|keys| [Some(&keys.id), keys.token.as_ref()]);
        let sent = id_and_token.chain([found.region.as_ref()]).flatten();
        let is_plain = sent
            .into_iter()
            .all(|text| text.bytes().all(|b| b.is_ascii_graphic()));
        match is_plain {
            true => Ok(found),
            false => Err(Error::Address(
                "the access key, the session token or the region in the environment has characters that none has"
                    .to_owned(),
            )),
        }
    }

    /// Whether requests are signed.
    pub(crate) fn are_there(&self) -> bool {
        self.keys.is_some()
    }

    /// The region that requests for an object are signed for.
    pub(crate) fn region<'a>(&'a self, object: &'a Object) -> &'a str {
        let named = object.region.as_deref();
        named
            .or_else(|| object.region_of_host())
            .or(self.region.as_deref())
            .unwrap_or(REGION)
    }

    /// The headers of a request with this body at this time, `Host` among them.
    pub(crate) fn headers(
        &self,
        method: &str,
        object: &Object,
        body: &[u8],
        now: SystemTime,
    ) -> Vec<(&'static str, String)> {
        self.headers_with(method, object, &[], body, now)
    }

    /// `more`: other headers that are signed, by their names in lower case.
    fn headers_with(
        &self,
        method: &str,
        object: &Object,
        more: &[(&'static str, String)],
        body: &[u8],
        now: SystemTime,
    ) -> Vec<(&'static str, String)> {
        let mut headers = vec![("host", object.host.clone())];
        let Some(keys) = &self.keys else {
            return headers;
        };
        let time = time_text(now);
        let day = &time[..8];
        headers.push(("x-amz-content-sha256", hex(sha256(body).as_ref())));
        headers.push(("x-amz-date", time.clone()));
        if let Some(token) = &keys.token {
            headers.push(("x-amz-security-token", token.clone()));
        }
        headers.extend_from_slice(more);
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        // The third line is the query: there is none.
        let request = format!(
            "{method}\n{}\n\n{lines}\n{names}\n{}",
            object.path,
            hex(sha256(body).as_ref())
        );
        let region = self.region(object);
        let scope = format!("{day}/{region}/s3/aws4_request");
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
            hex(sha256(request.as_bytes()).as_ref())
        );
        let first = format!("AWS4{}", keys.secret).into_bytes();
        let key = [day, region, "s3", "aws4_request"]
            .iter()
            .fold(first, |key, part| {
                sign(&key, part.as_bytes()).as_ref().to_vec()
            });
        let signature = hex(sign(&key, to_sign.as_bytes()).as_ref());
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            keys.id
        );
        headers.push(("authorization", value));
        headers
    }
}

fn sha256(bytes: &[u8]) -> digest::Digest {
    digest::digest(&digest::SHA256, bytes)
}

fn sign(key: &[u8], bytes: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time as signatures have it, in UTC: `20130524T000000Z`.
fn time_text(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let by = |year: u64, n: u64| year.is_multiple_of(n);
    let is_leap = |year: u64| by(year, 4) && (!by(year, 100) || by(year, 400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year:04}{month:02}{:02}T{hour:02}{minute:02}{:02}Z",
        days + 1,
        second % 60
    )
}

/// What an error of S3 says, in XML: its code, its sentence, and the bucket's region where that is the fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    message: String,
    pub(crate) region: Option<String>,
}

impl Refusal {
    /// Reads the body of an answer, which may be anything.
    pub(crate) fn read(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            let (value, _) = rest.split_once("</")?;
            let shown = value.chars().filter(|c| !c.is_control()).take(200);
            Some(shown.collect::<String>()).filter(|value| !value.is_empty())
        };
        Refusal {
            code: element("Code").unwrap_or_default(),
            message: element("Message").unwrap_or_default(),
            region: element("Region"),
        }
    }
}

impl fmt::Display for Refusal {
    /// ` (CODE: MESSAGE)`, or nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code.is_empty(), self.message.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => write!(f, " ({})", self.code),
            (true, false) => write!(f, " ({})", self.message),
            (false, false) => write!(f, " ({}: {})", self.code, self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The examples of Amazon's description of signatures.
    #[test]
    fn signatures_are_those_of_the_description() {
        let keys = S3Keys::new(
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            None,
        );
        // 24 May 2013, 0:00.
        let now = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let place = "s3+https://s3.amazonaws.com/examplebucket?lookup=dns&region=us-east-1";
        let place = S3Place::parse(place, "store").unwrap();
        let signature = |method, name, more: &[(&'static str, String)], body: &[u8]| {
            let object = place.object(name);
            let headers = keys.headers_with(method, &object, more, body, now);
            headers.last().unwrap().1.clone()
        };
        let range = [("range", "bytes=0-9".to_owned())];
        let found = signature("GET", "test.txt", &range, b"");
        assert_eq!(
            found,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let more = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT".to_owned()),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY".to_owned()),
        ];
        let found = signature("PUT", "test$file.text", &more, b"Welcome to Amazon S3.");
        assert!(
            found.ends_with("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            "{found}"
        );
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_704_067_199, "20231231T235959Z"),
            (1_709_251_200, "20240301T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(time_text(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn places_name_objects_and_regions() {
        let keys = S3Keys::of(|name| (name == "AWS_REGION").then(|| "of-env".to_owned())).unwrap();
        for (place, url, region) in [
            ("s3+http://h:9000/b", "http://h:9000/b/x", "of-env"),
            ("s3+http://h:80/b/", "http://h/b/x", "of-env"),
            (
                "s3+https://h:443/b/p/q%20r/?region=eu-1",
                "https://h/b/p/q%20r/x",
                "eu-1",
            ),
            (
                "s3+https://s3.eu-west-3.amazonaws.com/b/p",
                "https://s3.eu-west-3.amazonaws.com/b/p/x",
                "eu-west-3",
            ),
            (
                "s3+https://s3.eu-west-3.amazonaws.com/b/p?lookup=dns",
                "https://b.s3.eu-west-3.amazonaws.com/p/x",
                "eu-west-3",
            ),
        ] {
            let object = S3Place::parse(place, "store").unwrap().object("x");
            assert_eq!((&*object.url(), keys.region(&object)), (url, region));
        }
        for place in [
            "s3+http://h",
            "s3+http://h/",
            "s3+http:///b",
            "s3+https://h/b?shop=1",
            "s3+https://h/b?region=",
            "s3+https://h/b ad/p",
        ] {
            let error = S3Place::parse(place, "store").unwrap_err().to_string();
            assert!(error.contains("the store s3+"), "{place}: {error}");
        }
        for place in [
            "s3+http://key:secret@h/b",
            "s3+https://key:secret@h",
            "s3+https:/key:secret@h/b",
        ] {
            let error = S3Place::parse(place, "store").unwrap_err().to_string();
            assert!(
                error.starts_with("the store in S3: ") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_come_in_pairs_and_are_not_shown() {
        let of = |set: &[(&str, &str)]| {
            let found = |name: &str| set.iter().find(|(n, _)| *n == name);
            S3Keys::of(|name| found(name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(!of(&[("AWS_ACCESS_KEY_ID", "")]).unwrap().are_there());
        let keys = of(&[("S3_ACCESS_KEY", "id"), ("S3_SECRET_KEY", "hidden")]).unwrap();
        assert!(keys.are_there());
        assert!(!format!("{keys:?}").contains("hidden"));
        for (set, says) in [
            (
                &[("AWS_ACCESS_KEY_ID", "id")][..],
                "AWS_SECRET_ACCESS_KEY is not",
            ),
            (&[("S3_SECRET_KEY", "hidden")], "S3_ACCESS_KEY is not"),
            (
                &[
                    ("AWS_ACCESS_KEY_ID", "a\nb"),
                    ("AWS_SECRET_ACCESS_KEY", "hidden"),
                ],
                "characters",
            ),
        ] {
            let error = of(set).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn errors_of_servers_are_read_and_bounded() {
        let body = b"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>No\n</Message></Error>";
        assert_eq!(Refusal::read(body).to_string(), " (AccessDenied: No)");
        assert_eq!(Refusal::read(b"<Code>").to_string(), "");
        let long = format!("<Message>{}</Message>", "x".repeat(5000));
        assert_eq!(Refusal::read(long.as_bytes()).to_string().len(), 203);
        assert_eq!(
            Refusal::read(b"<Region>r</Region>").region.as_deref(),
            Some("r")
        );
    }
}
