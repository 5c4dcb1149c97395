"""MLServer's runtime of the model; ``PEER_SOURCE`` is the folder of ``serving_model``."""

import os
import sys

sys.path.insert(0, os.environ["PEER_SOURCE"])
import numpy as np
import serving_model
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Mlp(MLModel):
    """The model behind MLServer's codecs."""

    async def load(self) -> bool:
        self.model = serving_model.make_model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = np.asarray(NumpyCodec.decode_input(payload.inputs[0]), np.float32)
        logits = np.asarray(serving_model.run_rows(self.model, rows), np.float32)
        outputs = [NumpyCodec.encode_output(serving_model.OUTPUT, logits)]
        return InferenceResponse(model_name=self.name, model_version="1", id=payload.id, outputs=outputs)
