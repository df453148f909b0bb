"""Serialise an ONNX graph without traces of its origin."""

import onnx


def without_origins(model: onnx.ModelProto) -> bytes:
    """Serialise ``model`` without the exporter's stack traces, source paths and other notes."""
    graph, functions = model.graph, model.functions
    nodes = (node for holder in (graph, *functions) for node in holder.node)
    values = (*graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for message in (model, graph, *functions, *nodes, *values):
        for field in {"metadata_props", "doc_string"} & set(message.DESCRIPTOR.fields_by_name):
            message.ClearField(field)
    model.producer_name, model.producer_version = "florilege", ""
    return bytes(model.SerializeToString(deterministic=True))
