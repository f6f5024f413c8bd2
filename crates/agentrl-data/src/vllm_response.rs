//! Generated tokens in the JSON of a vLLM server's `/inference/v1/generate`.
//!
//! A token takes about 700 bytes there: its likeliest alternatives are an object each. One pass over these bytes makes flat
//! columns of them. The rest of a response is small.

use std::ops::Range;

use crate::{Error, ErrorKind, Result};

/// The candidates at the tokens of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// Number of tokens.
    pub count: usize,
    /// Ids of the candidates at each token, `[count, k]`: the sampled one, then the likeliest others.
    pub ids: Vec<i32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
    /// The bytes of the list that they were read from; empty if there is none.
    pub bytes: Range<usize>,
}

/// Read the list `content` of a response: `[{"top_logprobs": [{"token_id": 7, "logprob": -0.5, ...}, ...], ...}, ...]`.
///
/// # Errors
/// `Schema`: the bytes are no such list, or do not have as many candidates at each token.
pub fn candidates(bytes: &[u8]) -> Result<Candidates> {
    const KEY: &[u8] = b"\"content\"";
    let mut found = Candidates::default();
    // A quote inside of a JSON text has a backslash before it, so that the key is found nowhere else.
    let Some(at) = bytes.windows(KEY.len()).position(|window| window == KEY) else { return Ok(found) };
    let mut json = Json { bytes, at: at + KEY.len() };
    match json.takes(b':').and_then(|()| json.next()) {
        Some(b'[') => {}
        Some(_) => return Ok(found), // null
        None => return Err(unusable()),
    }
    let begin = json.at;
    json.content(&mut found).ok_or_else(unusable)?;
    let tokens = found.count.max(1);
    if found.ids.len() != found.logprobs.len() || found.ids.len() % tokens != 0 {
        return Err(unusable());
    }
    found.bytes = begin..json.at;
    Ok(found)
}

fn unusable() -> Error {
    Error::new(ErrorKind::Schema, "the response of a vLLM server has no log-probabilities of its tokens")
}

/// A place in JSON. Methods return `None` if something else is there.
struct Json<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        while self.bytes.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.at += 1)
    }

    /// Calls for each item of a list or an object until it is closed.
    fn each(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.takes(open)?;
        if self.next()? == close {
            return self.takes(close);
        }
        loop {
            item(self)?;
            if self.next()? == close {
                return self.takes(close);
            }
            self.takes(b',')?;
        }
    }

    /// Calls with the key of each value of an object.
    fn fields(&mut self, mut field: impl FnMut(&mut Self, &'a [u8]) -> Option<()>) -> Option<()> {
        self.each(b'{', b'}', |json| {
            let key = json.text()?;
            json.takes(b':')?;
            field(json, key)
        })
    }

    fn content(&mut self, to: &mut Candidates) -> Option<()> {
        self.each(b'[', b']', |json| {
            let before = to.ids.len();
            json.fields(|json, key| match key {
                b"top_logprobs" => json.each(b'[', b']', |json| {
                    json.fields(|json, key| match key {
                        b"token_id" => json.number().map(|id: i32| to.ids.push(id)),
                        b"logprob" => json.number().map(|logprob: f64| to.logprobs.push(logprob as f32)),
                        _ => json.skip(),
                    })
                }),
                _ => json.skip(),
            })?;
            to.count += 1;
            // As many candidates at each token.
            (to.ids.len() == to.count * (to.ids.len() - before)).then_some(())
        })
    }

    /// A text as it is written, without its quotes.
    fn text(&mut self) -> Option<&'a [u8]> {
        self.takes(b'"')?;
        let begin = self.at;
        while *self.bytes.get(self.at)? != b'"' {
            self.at += if self.bytes[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        Some(&self.bytes[begin..self.at - 1])
    }

    fn number<T: serde::de::DeserializeOwned>(&mut self) -> Option<T> {
        self.next()?;
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']'))?;
        self.at += length;
        serde_json::from_slice(&rest[..length]).ok()
    }

    /// Goes beyond a value.
    fn skip(&mut self) -> Option<()> {
        match self.next()? {
            b'"' => self.text().map(drop),
            b'[' | b'{' => {
                let mut depth = 0;
                loop {
                    match self.next()? {
                        b'"' => drop(self.text()?),
                        byte => {
                            self.at += 1;
                            match byte {
                                b'[' | b'{' => depth += 1,
                                b']' | b'}' => depth -= 1,
                                _ => {}
                            }
                        }
                    }
                    if depth == 0 {
                        return Some(());
                    }
                }
            }
            _ => {
                let rest = &self.bytes[self.at..];
                self.at += rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']'))?;
                Some(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: &str = r#"{"request_id":"a \"content\": [","choices":[{"token_ids":[7,2],"logprobs":{"content":[
        {"token_id":7,"logprob":-0.5,"rank":1,"top_logprobs":[{"token_id":7,"logprob":-0.5,"rank":1},
        {"token_id":9,"logprob":-9999.0,"rank":null}]},
        {"other":{"a":["]",1,{}]},"top_logprobs":[{"token_id":2,"logprob":-1.25,"rank":2},
        {"rank":1,"logprob":0,"token_id":3}]}]},"weight_versions":[]}]}"#;

    #[test]
    fn the_list_becomes_columns_and_the_rest_stays() {
        let found = candidates(RESPONSE.as_bytes()).unwrap();
        assert_eq!((found.count, &found.ids[..]), (2, &[7, 9, 2, 3][..]));
        assert_eq!(found.logprobs, [-0.5, -9999.0, -1.25, 0.0]);
        let rest = RESPONSE[..found.bytes.start].to_owned() + "[]" + &RESPONSE[found.bytes.end..];
        let rest: serde_json::Value = serde_json::from_str(&rest).unwrap();
        assert_eq!(rest["choices"][0]["token_ids"], serde_json::json!([7, 2]));
        assert_eq!(rest["request_id"], "a \"content\": [");
        // Digit by digit what serde_json makes of it.
        let whole: serde_json::Value = serde_json::from_str(RESPONSE).unwrap();
        assert_eq!(whole["choices"][0]["logprobs"]["content"][1]["top_logprobs"][0]["logprob"], -1.25);
    }

    #[test]
    fn a_response_without_the_list_has_no_tokens() {
        for text in ["", "{}", r#"{"choices":[{"token_ids":[],"logprobs":null}]}"#, r#"{"content" : null}"#] {
            assert_eq!(candidates(text.as_bytes()).unwrap(), Candidates::default(), "{text}");
        }
        let empty = candidates(br#"{"content": [ ]}"#).unwrap();
        assert_eq!((empty.count, empty.bytes), (0, 12..15));
    }

    #[test]
    fn other_lists_are_refused() {
        let fewer = RESPONSE.replace(r#"{"token_id":7,"logprob":-0.5,"rank":1},"#, "");
        let nameless = RESPONSE.replace(r#"{"rank":1,"logprob":0,"#, "{");
        let text = RESPONSE.replace("-1.25", "\"-1.25\"");
        for text in [&fewer, &nameless, &text, r#"{"content":[{"top_logprobs":[1]}]}"#, r#"{"content":"#] {
            assert_eq!(candidates(text.as_bytes()).unwrap_err().kind(), ErrorKind::Schema, "{text}");
        }
        let begin = RESPONSE.find("\"content\":[").unwrap() + 9;
        let end = candidates(RESPONSE.as_bytes()).unwrap().bytes.end;
        for cut in begin..end {
            assert!(candidates(&RESPONSE.as_bytes()[..cut]).is_err(), "{cut}");
        }
    }
}
