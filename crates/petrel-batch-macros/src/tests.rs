//! Snapshots of the refusals: `tests/errors.txt` has a program per refusal, with its words and the tokens at which it stands.

use proc_macro2::{LineColumn, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Item, Meta};

use crate::expand::expand;
use crate::refuse::is_batched;

/// A program that the macro refuses. `«` and `»` stand around each token at which a refusal is expected.
struct Case {
    messages: Vec<String>,
    program: String,
    places: Vec<(LineColumn, LineColumn)>,
}

fn cases(text: &str) -> Vec<Case> {
    text.split("\n\n").filter(|block| !block.trim().is_empty()).map(case).collect()
}

fn case(block: &str) -> Case {
    let (program, messages): (Vec<_>, Vec<_>) =
        block.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with("    "));
    let (mut text, mut places) = (String::new(), Vec::new());
    let mut at = LineColumn { line: 1, column: 0 };
    let mut starts = Vec::new();
    for letter in program.join("\n").chars() {
        match letter {
            '«' => starts.push(at),
            '»' => places.push((starts.pop().expect("« stands before »"), at)),
            letter => {
                text.push(letter);
                at.column += 1;
                if letter == '\n' {
                    at = LineColumn { line: at.line + 1, column: 0 };
                }
            }
        }
    }
    Case { messages: messages.into_iter().map(str::to_owned).collect(), program: text, places }
}

/// Expands an item with its attribute.
fn expand_item(program: &str) -> syn::Result<TokenStream> {
    let mut item: Item = syn::parse_str(program)?;
    let attributes = match &mut item {
        Item::Fn(function) => &mut function.attrs,
        Item::Struct(item) => &mut item.attrs,
        other => panic!("no case has such an item: {}", other.to_token_stream()),
    };
    let place = attributes.iter().position(is_batched).expect("the case has the attribute");
    let options = match attributes.remove(place).meta {
        Meta::List(list) => list.tokens,
        _ => TokenStream::new(),
    };
    expand(options, item.into_token_stream())
}

fn range(span: Span) -> (LineColumn, LineColumn) {
    (span.start(), span.end())
}

#[test]
fn refusals__have_their_words_at_the_users_tokens() {
    let mut wrong = String::new();
    for case in cases(include_str!("tests/errors.txt")) {
        let mut found: Vec<_> = match expand_item(&case.program) {
            Ok(_) => Vec::new(),
            Err(error) => {
                error.into_iter().map(|error| (error.to_string(), range(error.span()))).collect()
            }
        };
        found.sort_by_key(|(_, place)| place.0);
        let expected: Vec<_> = case.messages.into_iter().zip(case.places).collect();
        if found != expected || found.is_empty() {
            wrong += &format!("{}\nexpected {expected:#?}\nfound {found:#?}\n", case.program);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Collects the places of the checked values of a batch.
fn checks(tokens: TokenStream, places: &mut Vec<(LineColumn, LineColumn)>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => checks(group.stream(), places),
            TokenTree::Ident(name) if name == "no_temporary" => places.push(range(name.span())),
            _ => {}
        }
    }
}

/// `tests/checks.txt` has functions with `«` and `»` around the unnamed values beyond a mark.
#[test]
fn temporaries__are_checked_where_a_mark_would_end_them() {
    for mut case in cases(include_str!("tests/checks.txt")) {
        let mut found = Vec::new();
        checks(expand_item(&case.program).unwrap(), &mut found);
        for places in [&mut found, &mut case.places] {
            places.sort();
            places.dedup();
        }
        assert_eq!(found, case.places, "{}", case.program);
    }
}

#[test]
fn refusals__each_has_one_message_per_place() {
    for case in cases(include_str!("tests/errors.txt")) {
        assert_eq!(case.messages.len(), case.places.len(), "{}", case.program);
    }
}
