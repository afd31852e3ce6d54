"""BERT-large, GPT-2 and the first Transformer, with their tied embeddings.

A tied tensor is one gradient: the look-up at the input adds the last part of it, so the largest
tensor of the model is complete only when the backward pass ends, and is needed first in the next
forward pass. That makes these models the hard cases for any scheduler.
"""

from bytelane.job.zoo.builder import Builder
from bytelane.job.zoo.network import Network, Parameter, Rows


def bert_large() -> Network:
    """Build BERT-large (uncased) with both heads of its pre-training: 336,226,108 parameters.

    335,141,888 of them are the encoder with its pooler; the decoder is tied to the word embedding.
    Sentences have 128 tokens, as in 90 % of the original pre-training, of which 20 are predicted.
    Names are those of Hugging Face's ``BertForPreTraining``, except that the decoder's bias is
    named after the decoder.
    """
    tokens, predicted, width, vocabulary = 128, 20, 1024, 30_522
    words = Parameter("bert.embeddings.word_embeddings.weight", (vocabulary, width))
    net = Builder()
    x = net.embedding("bert.embeddings.word_embeddings", tokens, words)
    for kind, size in (("token_type", 2), ("position", 512)):
        at = f"bert.embeddings.{kind}_embeddings"
        net.embedding(at, tokens, Parameter(f"{at}.weight", (size, width)))
    x = net.layer_norm("bert.embeddings.LayerNorm", x)
    for layer in range(24):
        x = _bert_layer(net, f"bert.encoder.layer.{layer}", x)
    first = net.linear("bert.pooler.dense", Rows(1, width), width)
    y = net.linear("cls.predictions.transform.dense", Rows(predicted, width), width)
    y = net.layer_norm("cls.predictions.transform.LayerNorm", y)
    net.linear("cls.predictions.decoder", y, vocabulary, weight=words)
    net.linear("cls.seq_relationship", first, 2)
    return net.network(f"a text of {tokens} tokens")


def _bert_layer(net: Builder, at: str, x: Rows) -> Rows:
    for projection in ("query", "key", "value"):
        net.linear(f"{at}.attention.self.{projection}", x, x.width)
    y = net.attention(f"{at}.attention.self", x, x, heads=16)
    y = net.linear(f"{at}.attention.output.dense", y, x.width)
    x = net.layer_norm(f"{at}.attention.output.LayerNorm", y)
    y = net.linear(f"{at}.intermediate.dense", x, 4 * x.width)
    y = net.linear(f"{at}.output.dense", y, x.width)
    return net.layer_norm(f"{at}.output.LayerNorm", y)


def gpt2() -> Network:
    """Build the smallest GPT-2, on texts as long as it can read: 124,439,808 parameters.

    Names are those of Hugging Face's ``GPT2LMHeadModel``.
    """
    tokens, width = 1024, 768
    words = Parameter("transformer.wte.weight", (50_257, width))
    net = Builder()
    x = net.embedding("transformer.wte", tokens, words)
    net.embedding("transformer.wpe", tokens, Parameter("transformer.wpe.weight", (1024, width)))
    for layer in range(12):
        x = _gpt2_block(net, f"transformer.h.{layer}", x)
    x = net.layer_norm("transformer.ln_f", x)
    net.linear("lm_head", x, words.shape[0], bias=False, weight=words)
    return net.network(f"a text of {tokens} tokens")


def _gpt2_block(net: Builder, at: str, x: Rows) -> Rows:
    y = net.layer_norm(f"{at}.ln_1", x)
    net.linear(f"{at}.attn.c_attn", y, 3 * x.width)
    y = net.attention(f"{at}.attn", y, y, heads=12)
    net.linear(f"{at}.attn.c_proj", y, x.width)
    y = net.layer_norm(f"{at}.ln_2", x)
    y = net.linear(f"{at}.mlp.c_fc", y, 4 * x.width)
    return net.linear(f"{at}.mlp.c_proj", y, x.width)


def transformer_base() -> Network:
    """Build the base model of "Attention Is All You Need": 63,045,632 parameters.

    By the paper's formulas: biases in the feed-forward layers only, positions not learned, one
    matrix for both look-ups and the output. Its table says 65 million, which neither its 37,000
    tokens nor biases in the attention (36,864 more) explain. 32 tokens per side are about what a
    sentence pair of its data has.
    """
    tokens, width, layers = 32, 512, 6
    words = Parameter("embedding.weight", (37_000, width))
    net = Builder()
    source = net.embedding("encoder.embedding", tokens, words)
    for layer in range(layers):
        at = f"encoder.layers.{layer}"
        source = _attend(net, f"{at}.self_attn", source, source)
        source = _feed_forward(net, f"{at}.feed_forward", source)
    target = net.embedding("decoder.embedding", tokens, words)
    for layer in range(layers):
        at = f"decoder.layers.{layer}"
        target = _attend(net, f"{at}.self_attn", target, target)
        target = _attend(net, f"{at}.cross_attn", target, source)
        target = _feed_forward(net, f"{at}.feed_forward", target)
    net.linear("output", target, words.shape[0], bias=False, weight=words)
    return net.network(f"a sentence pair of {tokens} tokens each")


def _attend(net: Builder, at: str, x: Rows, to: Rows) -> Rows:
    queries = net.linear(f"{at}.query", x, x.width, bias=False)
    keys = net.linear(f"{at}.key", to, x.width, bias=False)
    net.linear(f"{at}.value", to, x.width, bias=False)
    y = net.attention(at, queries, keys, heads=8)
    return net.layer_norm(f"{at}.norm", net.linear(f"{at}.out", y, x.width, bias=False))


def _feed_forward(net: Builder, at: str, x: Rows) -> Rows:
    y = net.linear(f"{at}.wide", x, 4 * x.width)
    return net.layer_norm(f"{at}.norm", net.linear(f"{at}.narrow", y, x.width))
