//! The function that runs a batch.
//!
//! **Sweeps**, if no mark stands in a loop: the first state runs for each input of a group, then the state of the first
//! mark for the lanes that stopped there, and so on in the order of the text. Every mark has a list, and no lane is asked for a state.
//!
//! **Lanes**, if a mark stands in a loop: each lane has a state, and the lanes take turns. A lane that ends begins the next
//! input at once, so short inputs leave no lane idle beside long inputs (the order of AMAC: Kocberber et al., VLDB 2015).
//!
//! States stand in the order of the text, since the compiler infers the types of a state's kept values from the states before.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::spanned::Spanned;
use syn::{Attribute, Block, Ident, ItemFn, Meta, Path, Result, parse_quote};

use crate::machine::{self, Machine};
use crate::names::words;
use crate::normal::{label, witnesses};
use crate::options::Options;
use crate::signature::{Arguments, batch_name};
use crate::temporaries::{checked, is_whole};

/// The attributes that a batch takes over from its function. Others (`no_mangle`, `test`) make sense once only.
const ATTRIBUTES: [&str; 9] =
    ["allow", "cfg", "cold", "deny", "deprecated", "expect", "inline", "target_feature", "warn"];

/// Returns the batch of a function.
///
/// `body` is the function's body, in which marks are internal calls and `return` jumps to the end of `'__petrel_return`.
///
/// # Errors
/// If the body cannot be cut into states.
pub(crate) fn batch(
    function: &ItemFn,
    arguments: &Arguments,
    body: &Block,
    options: &Options,
) -> Result<TokenStream> {
    let names = ParameterNames::free_in(function);
    let machine = machine::build(
        with_inputs(arguments, body, &options.krate),
        &function.sig.ident,
        &options.krate,
    )?;
    let run = match machine.has_loops {
        true => lanes(&machine, arguments, options, &names),
        false => sweeps(&machine, arguments, options, &names),
    };
    let (items, witnesses) = (&machine.items, witnesses(machine.ties));
    let (head, inputs) = (head(function, arguments, options, &names), &names.inputs);
    let assertion = options.width_assertion();
    Ok(quote! {
        #head {
            #(#items)*
            #assertion
            #witnesses
            let mut __petrel_inputs =
                ::core::iter::Iterator::enumerate(::core::iter::IntoIterator::into_iter(#inputs));
            #run
        }
    })
}

/// The names of the batch's own parameters.
struct ParameterNames {
    inputs: Ident,
    each: Ident,
}

impl ParameterNames {
    /// Finds names that the function does not use.
    fn free_in(function: &ItemFn) -> Self {
        let mut taken = Vec::new();
        words(function.to_token_stream(), &mut |name| taken.push(name.to_string()));
        let free = |name: &str| {
            let mut name = name.to_owned();
            while taken.contains(&name) {
                name.push('_');
            }
            Ident::new(&name, Span::call_site())
        };
        Self { inputs: free("inputs"), each: free("each") }
    }
}

fn head(
    function: &ItemFn,
    arguments: &Arguments,
    options: &Options,
    names: &ParameterNames,
) -> TokenStream {
    let ItemFn { vis, sig, .. } = function;
    let attributes = function.attrs.iter().filter_map(taken_over);
    let (safety, name, shared) = (&sig.safety, batch_name(&sig.ident), &arguments.shared);
    let mut generics = sig.generics.clone();
    for lifetime in arguments.lifetimes.iter().rev() {
        generics.params.insert(0, parse_quote!(#lifetime));
    }
    let (parameters, condition) = (&generics.params, &generics.where_clause);
    let types = arguments.inputs.iter().map(|input| &input.ty).collect::<Vec<_>>();
    let item = match &*types {
        [only] => quote!(#only),
        types => quote!((#(#types),*)),
    };
    let (ParameterNames { inputs, each }, result) = (names, &arguments.result);
    let first = format!("Runs [`{0}`](Self::{0}) for each input", sig.ident);
    let first = match arguments.is_method {
        true => first,
        false => format!("Runs [`{}`] for each input", sig.ident),
    };
    let width = options.width().to_string();
    let doc = format!(
        "{first}, so that the memory accesses of up to {} inputs overlap.\n\n`{each}` gets the index of an input and its result, in no particular order.",
        width.trim_matches(|letter: char| "{} ".contains(letter)),
    );
    quote! {
        #[doc = #doc]
        #(#attributes)*
        #[allow(
            warnings, unused, non_shorthand_field_patterns, clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction,
            reason = "the lints of the plain function speak for both, and code is copied into several states"
        )]
        #vis #safety fn #name<#parameters>(
            #(#shared,)*
            #inputs: impl ::core::iter::IntoIterator<Item = #item>,
            mut #each: impl ::core::ops::FnMut(usize, #result),
        ) #condition
    }
}

fn taken_over(attribute: &Attribute) -> Option<TokenStream> {
    let name = attribute.path().get_ident()?.to_string();
    if !ATTRIBUTES.contains(&&*name) {
        return None;
    }
    match &attribute.meta {
        // A lint that the plain function fulfils may not occur in the batch.
        Meta::List(list) if name == "expect" => {
            let lints = &list.tokens;
            Some(quote!(#[allow(#lints)]))
        }
        _ => Some(attribute.to_token_stream()),
    }
}

/// Binds the lane's arguments at the beginning of the body.
fn with_inputs(arguments: &Arguments, body: &Block, krate: &Path) -> Block {
    let patterns = arguments.inputs.iter().map(|input| &input.pattern).collect::<Vec<_>>();
    let pattern = match &*patterns {
        [only] => quote!(#only),
        patterns => quote!((#(#patterns),*)),
    };
    let mut body = body.clone();
    let mut input = parse_quote!(__petrel_input);
    if let Some(partial) = patterns.into_iter().find(|pattern| !is_whole(pattern)) {
        checked(krate, partial.span(), &mut input);
    }
    body.stmts.insert(0, parse_quote!(let #pattern = #input;));
    body
}

/// How a state ends at a mark, with the values to be kept.
pub(crate) fn suspend(has_loops: bool, mark: usize, values: &TokenStream) -> TokenStream {
    let step = label("step", Span::call_site());
    let store = match has_loops {
        true => {
            let state = state_name(mark);
            quote!(*__petrel_lane = __PetrelLane::#state((__petrel_index, #values));)
        }
        false => {
            let list = list_name(mark);
            quote!(#list.push((__petrel_index, #values));)
        }
    };
    quote!(#store break #step;)
}

fn list_name(mark: usize) -> Ident {
    format_ident!("__petrel_list_{mark}")
}

fn state_name(mark: usize) -> Ident {
    format_ident!("At{mark}")
}

/// Returns the code of a state, which hands out the result if the function ends in it.
fn state_code(
    machine: &Machine,
    number: usize,
    arguments: &Arguments,
    names: &ParameterNames,
) -> TokenStream {
    let (code, result, each) = (&machine.states[number].code, &arguments.result, &names.each);
    let end = label("return", Span::call_site());
    quote! {
        let __petrel_result: #result = #end: #code;
        #each(__petrel_index, __petrel_result);
    }
}

fn sweeps(
    machine: &Machine,
    arguments: &Arguments,
    options: &Options,
    names: &ParameterNames,
) -> TokenStream {
    let (krate, width) = (&options.krate, options.width());
    let label = label("step", Span::call_site());
    let begin = state_code(machine, 0, arguments, names);
    let marks = 1..machine.states.len();
    let lists = marks.clone().map(list_name);
    let passes = marks.map(|mark| {
        let (list, kept) = (list_name(mark), &machine.states[mark].kept);
        let code = state_code(machine, mark, arguments, names);
        quote! {
            for (__petrel_index, (#(#kept,)*)) in #list.drain() {
                #label: { #code }
            }
        }
    });
    quote! {
        #(let mut #lists = #krate::__private::List::<_, #width>::new();)*
        let mut __petrel_has_more = true;
        let __petrel_width: usize = #width;
        while __petrel_has_more {
            for _ in 0..__petrel_width {
                let ::core::option::Option::Some((__petrel_index, __petrel_input)) =
                    ::core::iter::Iterator::next(&mut __petrel_inputs)
                else {
                    __petrel_has_more = false;
                    break;
                };
                #label: { #begin }
            }
            #(#passes)*
        }
    }
}

fn lanes(
    machine: &Machine,
    arguments: &Arguments,
    options: &Options,
    names: &ParameterNames,
) -> TokenStream {
    let (krate, width) = (&options.krate, options.width());
    let lane = label("lane", Span::call_site());
    let step = label("step", Span::call_site());
    let begin = state_code(machine, 0, arguments, names);
    let marks = 1..machine.states.len();
    let states = marks.clone().map(state_name).collect::<Vec<_>>();
    let types = marks.clone().map(|mark| format_ident!("K{mark}")).collect::<Vec<_>>();
    let arms = marks.map(|mark| {
        let (state, kept) = (state_name(mark), &machine.states[mark].kept);
        let code = state_code(machine, mark, arguments, names);
        quote!(__PetrelLane::#state((__petrel_index, (#(#kept,)*))) => { #code })
    });
    quote! {
        enum __PetrelLane<#(#types),*> {
            Start,
            #(#states(#types),)*
        }
        let mut __petrel_lanes: [_; #width] = ::core::array::from_fn(|_| __PetrelLane::Start);
        let mut __petrel_live: usize = #width;
        // Each lane that ends asks for an input, the last ones in vain.
        let mut __petrel_inputs = ::core::iter::Iterator::fuse(__petrel_inputs);
        while __petrel_live > 0 {
            let mut __petrel_has_idle = false;
            for __petrel_lane in &mut __petrel_lanes[..__petrel_live] {
                #lane: loop {
                    #step: {
                        match ::core::mem::replace(__petrel_lane, __PetrelLane::Start) {
                            __PetrelLane::Start => {
                                let ::core::option::Option::Some((__petrel_index, __petrel_input)) =
                                    ::core::iter::Iterator::next(&mut __petrel_inputs)
                                else {
                                    __petrel_has_idle = true;
                                    break #lane;
                                };
                                #begin
                            }
                            #(#arms)*
                        }
                        // The input has its result, and the lane begins the next input.
                        continue #lane;
                    }
                    break #lane;
                }
            }
            if __petrel_has_idle {
                __petrel_live = #krate::__private::busy_first(
                    &mut __petrel_lanes[..__petrel_live],
                    |lane| !::core::matches!(lane, __PetrelLane::Start),
                );
            }
        }
    }
}
