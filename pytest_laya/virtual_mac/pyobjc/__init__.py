"""Stand-ins for the PyObjC modules that the asynchronous path touches, by PyObjC's naming rules.

A selector ``initWithShape:dataType:error:`` is ``initWithShape_dataType_error_``; an out-argument is passed
as None and comes back in the result tuple; Python numbers, lists and dictionaries stand for Foundation's.
"""
