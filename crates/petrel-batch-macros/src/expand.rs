//! From an item with the attribute to the items that replace it.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::visit_mut::VisitMut;
use syn::{Error, Item, ItemFn, ItemMod, Path, Result};

use crate::inline::{self, Callee, Callees};
use crate::marks::{Replace, note};
use crate::normal::{Returns, label};
use crate::options::Options;
use crate::signature::{self, Arguments};
use crate::{emit, refuse};

/// Returns the items that replace an item with the attribute.
///
/// # Errors
/// If the item, or a construct in it, cannot be batched.
pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = Options::parse(options)?;
    match syn::parse2(item)? {
        Item::Fn(function) => expand_function(&function, &options, &Callees::new()),
        Item::Mod(module) => expand_module(module, &options),
        other => Err(Error::new_spanned(
            other,
            "`#[batched]` stands before a function, or before a module whose batched functions call each other",
        )),
    }
}

fn expand_function(function: &ItemFn, options: &Options, callees: &Callees) -> Result<TokenStream> {
    let arguments = checked(function, &options.krate)?;
    let mut body = with_marks(function, &options.krate)?;
    let result = arguments.result.clone();
    let end = label("return", proc_macro2::Span::call_site());
    Returns { label: end, result, krate: &options.krate }.visit_block_mut(&mut body);
    inline::inline(&function.sig.ident, &mut body, callees, &options.krate)?;
    let batch = emit::batch(function, &arguments, &body, options)?;
    let plain = plain(function, &options.krate);
    Ok(quote!(#plain #batch))
}

/// Reads the signature, and refuses all constructs that cannot be batched.
fn checked(function: &ItemFn, krate: &Path) -> Result<Arguments> {
    let arguments = signature::read(&function.sig);
    let is_method = arguments.as_ref().is_ok_and(|arguments| arguments.is_method);
    let body = refuse::check(&function.block, &function.sig.ident, is_method, krate);
    match (arguments, body) {
        (Ok(arguments), Ok(())) => Ok(arguments),
        (Err(mut error), Err(other)) => {
            error.combine(other);
            Err(error)
        }
        (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Returns the body with the marks as internal calls.
fn with_marks(function: &ItemFn, krate: &Path) -> Result<syn::Block> {
    let mut body = (*function.block).clone();
    let mut replace = Replace { krate, is_plain: false, error: None };
    replace.visit_block_mut(&mut body);
    replace.error.map_or(Ok(body), Err)
}

/// Returns the function without its marks. A program may need the batch alone.
fn plain(function: &ItemFn, krate: &Path) -> TokenStream {
    let mut plain = function.clone();
    signature::strip(&mut plain.sig);
    Replace { krate, is_plain: true, error: None }.visit_block_mut(&mut plain.block);
    quote!(#[allow(dead_code)] #plain)
}

/// Takes the attribute from a function of a batched module.
fn take_attribute(function: &mut ItemFn) -> Result<Option<Options>> {
    let Some(place) = function.attrs.iter().position(refuse::is_batched) else { return Ok(None) };
    let attribute = function.attrs.remove(place);
    let options = match attribute.meta {
        syn::Meta::List(list) => list.tokens,
        _ => TokenStream::new(),
    };
    Options::parse(options).map(Some)
}

fn expand_module(module: ItemMod, own: &Options) -> Result<TokenStream> {
    let Some((_, items)) = module.content else {
        return Err(Error::new_spanned(
            module.mod_token,
            "a batched module needs its text here: write `mod name { … }`, since the macro does not see other files",
        ));
    };
    let mut error = None;
    let mut batched = Vec::new();
    let mut others = Vec::new();
    for item in items {
        match item {
            Item::Fn(mut function) => match take_attribute(&mut function) {
                Ok(Some(mut options)) => {
                    options.krate = own.krate.clone();
                    batched.push((function, options));
                }
                Ok(None) => others.push(Item::Fn(function).into_token_stream()),
                Err(refusal) => note(&mut error, refusal),
            },
            other => others.push(other.into_token_stream()),
        }
    }
    if batched.is_empty() && error.is_none() {
        let message = "a batched module needs functions with `#[batched]`: mark the functions that have marks or call such functions";
        return Err(Error::new_spanned(&module.ident, message));
    }
    let callees = callees(&batched, own, &mut error);
    for (function, options) in &batched {
        match expand_function(function, options, &callees) {
            Ok(function) => others.push(function),
            Err(refusal) => note(&mut error, refusal),
        }
    }
    if let Some(error) = error {
        return Err(error);
    }
    let (attributes, vis, name) = (&module.attrs, &module.vis, &module.ident);
    Ok(quote!(#(#attributes)* #vis mod #name { #(#others)* }))
}

fn callees(batched: &[(ItemFn, Options)], own: &Options, error: &mut Option<Error>) -> Callees {
    let mut callees = Callees::new();
    for (function, _) in batched {
        match with_marks(function, &own.krate) {
            Ok(body) => {
                let callee = Callee { signature: function.sig.clone(), body };
                callees.insert(function.sig.ident.clone(), callee);
            }
            Err(refusal) => note(error, refusal),
        }
    }
    callees
}
